"""Binary methods applied to each class against the rest."""

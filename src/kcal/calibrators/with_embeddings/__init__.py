"""Methods on embeddings and logits that are not kernel density estimates."""

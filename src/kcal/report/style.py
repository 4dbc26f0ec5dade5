"""The style sheet of the page: any width, light and dark, print."""

STYLE = """\
:root { color-scheme: light dark; --text: #1b1f24; --soft: #57606a; --line: #d0d7de; --back: #ffffff; --card: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --soft: #9aa5b1; --line: #3b434c; --back: #14181d; --card: #1d232a; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.8rem; line-height: 1.2; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; margin: 2.4rem 0 .6rem; padding-bottom: .2rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; line-height: 1.3; margin: 0 0 .3rem; overflow-wrap: anywhere; }
p { max-width: 46rem; margin: .5rem 0; }
.lead, .note, .interval, figcaption { color: var(--soft); }
.note, figcaption { font-size: .875rem; }
.scroll { overflow-x: auto; margin: .6rem 0; }
table { border-collapse: separate; border-spacing: 0; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .9rem .35rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { font-weight: 600; }
tbody th { font-weight: 400; min-width: 8rem; max-width: 28rem; overflow-wrap: anywhere; }
thead th { vertical-align: bottom; }
tr > :first-child { position: sticky; left: 0; background: var(--back); }
.number { text-align: right; }
td { white-space: nowrap; }
.interval { display: block; font-size: .8rem; font-weight: 400; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.2rem; margin: .6rem 0; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
.pictures { display: flex; flex-wrap: wrap; gap: 1rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 33rem), 1fr)); gap: 1rem; }
.single { grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr)); }
article { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .8rem; min-width: 0; }
article .pictures { gap: .5rem; }
article figure { flex: 1 1 14rem; }
figure { margin: 0; }
img { display: block; max-width: 100%; height: auto; background: #fff; border-radius: 6px; }
article img { width: 100%; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; list-style: none; margin: .6rem 0; padding: 0; }
.legend li { display: flex; align-items: center; gap: .5rem; font-size: .875rem; }
.mark { display: inline-block; flex: none; width: 1.6rem; height: .9rem; background: #fff; }
.observed { background: #56b4e9; border-top: 3px solid #0072b2; }
.gap { background: repeating-linear-gradient(135deg, #f9d9c3 0 3px, #d55e00 3px 4px); border: 1px solid #d55e00; }
.band { background: linear-gradient(90deg, #fff 46%, #000 46% 54%, #fff 54%); }
.diagonal { background: repeating-linear-gradient(90deg, #000 0 5px, #fff 5px 8px) 0 50% / 100% 2px no-repeat #fff; }
.dot { background: radial-gradient(circle at center, #4d4d4d 3px, transparent 3.6px), linear-gradient(#fff, #fff); }
.hollow { background: radial-gradient(circle at center, #fff 2px, #4d4d4d 2.6px 3.4px, #fff 4px); }
@media (max-width: 34rem) {
  table { font-size: .875rem; }
  th, td { padding-right: .6rem; }
  tbody th { min-width: 6.5rem; max-width: 9rem; }
}
summary { cursor: pointer; }
:focus-visible { outline: 2px solid #0072b2; outline-offset: 2px; }
@media print { article, figure { break-inside: avoid; } .scroll { overflow: visible; } }
"""

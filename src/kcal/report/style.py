"""The style sheet of the page: any width, light and dark, print."""

STYLE = """\
:root { color-scheme: light dark; --text: #1b1f24; --soft: #57606a; --line: #d0d7de; --back: #ffffff; --card: #f6f8fa;
  --gap: #f9d9c3; --bar: #56b4e9; --strong: #0072b2; --counts: #4d4d4d; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --soft: #9aa5b1; --line: #3b434c; --back: #14181d; --card: #1d232a;
    --gap: #4a2a18; --bar: #1f5f8c; --strong: #8fd0f7; --counts: #aab4be; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.8rem; line-height: 1.2; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; margin: 2.4rem 0 .6rem; padding-bottom: .2rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; line-height: 1.3; margin: 0 0 .3rem; overflow-wrap: anywhere; }
p { max-width: 62rem; margin: .5rem 0; }
.lead, .note, figcaption { color: var(--soft); }
.verdict { font-size: 1.15rem; max-width: none; margin: 1.2rem 0 .6rem; }
.note, figcaption { font-size: .875rem; }
.scroll { overflow-x: auto; margin: .6rem 0; }
table { border-collapse: separate; border-spacing: 0; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .9rem .35rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { font-weight: 600; }
tbody th { font-weight: 400; min-width: 10rem; max-width: 28rem; overflow-wrap: anywhere; }
thead th { vertical-align: bottom; }
tr > :first-child { position: sticky; left: 0; background: var(--back); }
.number { text-align: right; }
td { white-space: nowrap; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.2rem; margin: .6rem 0; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 1rem; }
.beside { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 40rem); gap: 1rem 2rem; align-items: start; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 33rem), 1fr)); gap: 1rem; }
.single { grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr)); }
article { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .8rem; min-width: 0; }
article .pictures { grid-template-columns: repeat(auto-fit, minmax(min(100%, 14rem), 1fr)); gap: .5rem; }
figure { margin: 0; }
.plot { display: block; max-width: 100%; height: auto; fill: var(--text); }
.plot * { stroke-linejoin: round; stroke-linecap: butt; }
article .plot { width: 100%; max-width: 26rem; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; list-style: none; margin: .6rem 0; padding: 0; }
.legend li { display: flex; align-items: center; gap: .5rem; font-size: .875rem; }
.mark { display: inline-block; flex: none; width: 1.6rem; height: .9rem; }
.observed { background: var(--bar); border-top: 3px solid var(--strong); }
.gap { background: repeating-linear-gradient(135deg, var(--gap) 0 3px, #d55e00 3px 4px); border: 1px solid #d55e00; }
.band { background: radial-gradient(circle, var(--text) 3px, transparent 3.6px),
  linear-gradient(90deg, transparent 46%, var(--text) 46% 54%, transparent 54%); }
.diagonal { background: repeating-linear-gradient(90deg, var(--text) 0 5px, transparent 5px 8px)
  0 50% / 100% 2px no-repeat; }
.counts { background: var(--counts); }
@media (max-width: 60rem) { .beside { display: block; } }
@media (max-width: 40rem) {
  table, tbody, tr, tbody th, td { display: block; max-width: none; }
  thead { display: none; }
  tr { border-bottom: 1px solid var(--line); padding: .5rem 0; }
  tbody th, td { border: 0; padding: .1rem 0; }
  tbody th { font-weight: 600; }
  td { display: flex; justify-content: space-between; gap: 1rem; }
  td::before { content: attr(data-label); color: var(--soft); white-space: normal; }
  td:empty { display: none; }
}
summary { cursor: pointer; }
:focus-visible { outline: 2px solid #0072b2; outline-offset: 2px; }
@media print { article, figure { break-inside: avoid; } .scroll { overflow: visible; } }
"""

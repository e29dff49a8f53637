// What the search page sorts by: Sphinx's own numbers, but a chapter comes before a list, and a list before a name.
const LISTS = /^(claims|reference)/;
var Scorer = {
  score: ([docname, , , , score]) => score + (LISTS.test(docname) ? 0 : 100),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: {},
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

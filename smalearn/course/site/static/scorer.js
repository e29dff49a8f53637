// What the search page sorts by: Sphinx's own numbers, but pages of the course come before names of the reference.
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: {},
  objPrioDefault: -10,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

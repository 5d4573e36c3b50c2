//! kube-scheduler: NodeAffinity's score, weight 2: the sum of the weights of the preferred terms that match.

use crate::class::Shape;
use crate::intern::{Interner, Symbol};
use crate::labels::LabelSet;

pub(crate) fn raw(pod: &Shape, labels: &LabelSet, name: Symbol, names: &Interner) -> i64 {
    let matching = pod
        .preferred_nodes
        .iter()
        .filter(|(_, term)| term.matches(labels, name, names));
    matching.map(|(weight, _)| weight).sum()
}

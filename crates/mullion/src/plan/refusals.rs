//! Prints which pods get no place, and why, for people.

use std::collections::BTreeMap;

use super::{
    quotas::RefusedPods,
    report::{Report, UnplacedPods},
};
use crate::why::page::{Page, Row};

/// The number of names shown of a group.
const SHOWN: usize = 4;
/// The indentation of a group's reasons.
const INDENT: &str = "           ";

/// Prints the pods that have no place, and why no pool buys a node for them.
pub(super) fn unplaced(page: &mut Page, groups: &[UnplacedPods]) {
    if groups.is_empty() {
        return;
    }
    page.blank();
    page.title("pods without a place");
    for group in groups {
        names(page, &group.pods);
        let invalid = group.invalid.iter().map(|why| ("", why.as_str()));
        let refused = group
            .pools
            .iter()
            .map(|word| (word.pool.as_str(), word.reason.as_str()));
        reasons(page, invalid.chain(refused), INDENT);
        if group.invalid.is_none() && group.pools.is_empty() {
            reasons(page, [("", "no pool can buy a node")].into_iter(), INDENT);
        }
    }
}

/// Prints the pods that quotas refuse, and the API server's words.
pub(super) fn refused(page: &mut Page, groups: &[RefusedPods]) {
    if groups.is_empty() {
        return;
    }
    page.blank();
    page.title("pods that a quota refuses");
    for group in groups {
        names(page, &group.pods);
        reasons(page, [("", group.reason.as_str())].into_iter(), INDENT);
    }
}

/// Prints the number of pods in a group, and the first names.
fn names(page: &mut Page, pods: &[String]) {
    let row = Row {
        lead: format!("    {:>5}  ", pods.len()),
        what: some_of(pods),
        aside: String::new(),
    };
    page.rows(&[row], 0);
}

/// Prints the pools that cannot buy anything at all, and those that were added and buy nothing.
pub(super) fn pools(page: &mut Page, report: &Report) {
    if report.closed_pools.is_empty() && report.idle_pools.is_empty() {
        return;
    }
    page.blank();
    page.title("pools that buy nothing");
    let pools = report.closed_pools.iter().chain(&report.idle_pools);
    let pools = pools.map(|word| (word.pool.as_str(), word.reason.as_str()));
    reasons(page, pools, "    ");
}

fn reasons<'a>(page: &mut Page, all: impl Iterator<Item = (&'a str, &'a str)>, indent: &str) {
    // Pools with the same reason share a line.
    let mut by_reason: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    for (pool, reason) in all {
        let index = *known.entry(reason).or_insert_with(|| {
            by_reason.push((reason, Vec::new()));
            by_reason.len() - 1
        });
        by_reason[index].1.push(pool);
    }
    let named: Vec<(String, &str)> = by_reason
        .into_iter()
        .map(|(reason, pools)| (pools.join(", "), reason))
        .collect();
    let width = named.iter().map(|(pools, _)| pools.len()).max();
    let width = width.unwrap_or(0);
    let rows = named.into_iter().map(|(pools, reason)| Row {
        lead: match width {
            0 => indent.to_owned(),
            _ => format!("{indent}{pools:width$}  "),
        },
        what: reason.to_owned(),
        aside: String::new(),
    });
    page.rows(&rows.collect::<Vec<_>>(), 0);
}

/// Returns the first few names, and how many more there are.
pub(crate) fn some_of(names: &[String]) -> String {
    let shown = names[..names.len().min(SHOWN)].join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

//! Compares two plans: for the cluster as it is, and with the changes of the what-if flags.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{
    columns::{Alignment, Columns},
    options::PlanArgs,
    price::{a_month, whole},
    refusals,
    report::Report,
    table,
};
use crate::why::page::Page;

/// Two plans and the difference between them.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Comparison {
    /// The changes of the what-if flags, as sentences.
    pub(super) what_if: Vec<String>,
    pub(super) difference: Difference,
    pub(super) now: Report,
    pub(super) then: Report,
}

/// The differences between two plans.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Difference {
    /// The increase of the price of all nodes together in US dollars an hour; negative if they get cheaper.
    pub(super) usd_per_hour: f64,
    pub(super) usd_per_month: f64,
    /// The nodes to buy, grouped by pool, instance type and capacity type.
    pub(super) nodes: Vec<Kind>,
    /// Pods that have a place in the plan as things are and none with the changes.
    pub(super) newly_unplaced: Vec<String>,
    /// Pods that have no place in the plan as things are and one with the changes.
    pub(super) newly_placed: Vec<String>,
}

/// The number of nodes of one kind in both plans.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Kind {
    pub(super) node_pool: String,
    pub(super) instance_type: String,
    pub(super) capacity_type: String,
    pub(super) now: usize,
    pub(super) then: usize,
}

impl Comparison {
    pub(super) fn of(what_if: Vec<String>, now: Report, then: Report) -> Self {
        let more = then.price.after_usd_per_hour - now.price.after_usd_per_hour;
        // Both sums are whole micro-dollars, so rounding removes only the error of the subtraction.
        let more = (more * 1e6).round() / 1e6;
        let (refused, refused_then) = (unplaced(&now), unplaced(&then));
        let mut difference = Difference {
            usd_per_hour: more,
            usd_per_month: a_month(more),
            nodes: kinds(&now, &then),
            newly_unplaced: without(&refused_then, &refused),
            newly_placed: without(&refused, &refused_then),
        };
        // A pod that only one of the plans has did not change its place.
        let coming = names(&now);
        difference
            .newly_unplaced
            .retain(|pod| coming.contains(pod.as_str()));
        let coming = names(&then);
        difference
            .newly_placed
            .retain(|pod| coming.contains(pod.as_str()));
        Comparison {
            what_if,
            difference,
            now,
            then,
        }
    }

    /// Returns the comparison as text for people, without a newline at its end.
    pub(super) fn text(&self, args: &PlanArgs, colours: bool, width: Option<usize>) -> String {
        let mut page = Page::new(colours, width);
        page.paragraph(&format!("What if: {}.", self.what_if.join("; ")));
        page.blank();
        for line in self.sums() {
            page.paragraph(&line);
        }
        page.blank();
        for line in self.nodes() {
            page.paragraph(&line);
        }
        let Difference {
            newly_unplaced,
            newly_placed,
            ..
        } = &self.difference;
        for (what, pods) in [("lose", newly_unplaced), ("get", newly_placed)] {
            if !pods.is_empty() {
                page.blank();
                let verb = match (what, pods.len()) {
                    ("lose", 1) => "loses its place",
                    ("lose", _) => "lose their places",
                    (_, 1) => "gets a place",
                    _ => "get places",
                };
                page.paragraph(&format!("{} {verb}.", refusals::some_of(pods)));
            }
        }
        if args.pods {
            page.blank();
            table::places(&mut page, &self.then);
        }
        refusals::unplaced(&mut page, &self.then.unplaced);
        refusals::refused(&mut page, &self.then.refused);
        refusals::pools(&mut page, &self.then);
        for remark in &self.then.remarks {
            page.blank();
            page.dimmed(&format!("{remark}."));
        }
        page.end()
    }

    fn sums(&self) -> Vec<String> {
        let mut table = Columns::new([
            ("", Alignment::Left),
            ("now", Alignment::Right),
            ("then", Alignment::Right),
            ("difference", Alignment::Right),
        ]);
        let mut numbers = |what: &str, now: usize, then: usize| {
            let more = then as i64 - now as i64;
            let more = if more == 0 {
                String::new()
            } else {
                format!("{more:+}")
            };
            table.row([what.to_owned(), now.to_string(), then.to_string(), more]);
        };
        let (now, then) = (&self.now, &self.then);
        numbers("nodes to buy", now.nodes.len(), then.nodes.len());
        numbers("pods placed", placed(now), placed(then));
        numbers(
            "pods without a place",
            now.pods.unplaced,
            then.pods.unplaced,
        );
        if now.pods.refused + then.pods.refused > 0 {
            numbers("refused by a quota", now.pods.refused, then.pods.refused);
        }
        let more = self.difference.usd_per_hour;
        table.row([
            "USD an hour".to_owned(),
            format!("{:.3}", now.price.after_usd_per_hour),
            format!("{:.3}", then.price.after_usd_per_hour),
            if more == 0.0 {
                String::new()
            } else {
                format!("{more:+.3}")
            },
        ]);
        let more = self.difference.usd_per_month;
        let sign = if more > 0.0 { "+" } else { "" };
        table.row([
            "USD a month".to_owned(),
            whole(now.price.after_usd_per_month),
            whole(then.price.after_usd_per_month),
            if more == 0.0 {
                String::new()
            } else {
                format!("{sign}{}", whole(more))
            },
        ]);
        table.lines()
    }

    fn nodes(&self) -> Vec<String> {
        let mut table = Columns::new([
            ("pool", Alignment::Left),
            ("type", Alignment::Left),
            ("capacity", Alignment::Left),
            ("now", Alignment::Right),
            ("then", Alignment::Right),
        ]);
        for kind in &self.difference.nodes {
            table.row([
                kind.node_pool.clone(),
                kind.instance_type.clone(),
                kind.capacity_type.clone(),
                kind.now.to_string(),
                kind.then.to_string(),
            ]);
        }
        if self.difference.nodes.is_empty() {
            Vec::new()
        } else {
            table.lines()
        }
    }
}

/// Returns the pods that are in `all` and not in `others`.
fn without<'a>(all: &BTreeSet<&'a str>, others: &BTreeSet<&'a str>) -> Vec<String> {
    all.difference(others)
        .map(|pod| (*pod).to_owned())
        .collect()
}

fn placed(report: &Report) -> usize {
    report.pods.on_existing_nodes + report.pods.on_new_nodes
}

/// Returns the pods without a place, and those that quotas refuse.
fn unplaced(report: &Report) -> BTreeSet<&str> {
    let unplaced = report.unplaced.iter().flat_map(|group| &group.pods);
    let refused = report.refused.iter().flat_map(|group| &group.pods);
    unplaced.chain(refused).map(String::as_str).collect()
}

/// Returns the names of all pods of a plan.
fn names(report: &Report) -> BTreeSet<&str> {
    let there = report.existing.values().flatten();
    let bought = report.nodes.iter().flat_map(|node| &node.pods);
    let placed = there.chain(bought).map(String::as_str);
    placed.chain(unplaced(report)).collect()
}

fn kinds(now: &Report, then: &Report) -> Vec<Kind> {
    let mut kinds: BTreeMap<_, (usize, usize)> = BTreeMap::new();
    for (kind, number) in now.kinds() {
        kinds.entry(kind).or_default().0 = number;
    }
    for (kind, number) in then.kinds() {
        kinds.entry(kind).or_default().1 = number;
    }
    let kinds = kinds.into_iter();
    let kinds = kinds.map(|((pool, instance_type, capacity_type), (now, then))| Kind {
        node_pool: pool.to_owned(),
        instance_type: instance_type.to_owned(),
        capacity_type: capacity_type.to_owned(),
        now,
        then,
    });
    kinds.collect()
}

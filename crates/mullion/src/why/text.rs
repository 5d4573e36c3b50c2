//! An explanation for people.

use std::fmt::Write;

use super::{
    answer::NodeRecord,
    explanation::{ChangeSet, Explanation, Purchase},
};

/// Nodes named per reason, and shown with their scores.
const SHOWN: usize = 4;
/// Width of the column of reasons; longer ones push their nodes away.
const REASON_WIDTH: usize = 56;

struct Ink {
    bold: &'static str,
    dim: &'static str,
    good: &'static str,
    bad: &'static str,
    end: &'static str,
}

/// The whole text about a pod and others like it, without a newline at its end. Writing to a String does not fail.
pub(super) fn text(explanation: &Explanation, like_it: &[&Explanation], colours: bool) -> String {
    let ink = match colours {
        true => Ink {
            bold: "\x1b[1m",
            dim: "\x1b[2m",
            good: "\x1b[32m",
            bad: "\x1b[31m",
            end: "\x1b[0m",
        },
        false => Ink {
            bold: "",
            dim: "",
            good: "",
            bad: "",
            end: "",
        },
    };
    let mut out = headline(explanation, &ink);
    if !like_it.is_empty() {
        let shown = like_it.iter().take(SHOWN).map(|other| other.pod.as_str());
        let names = shown.collect::<Vec<_>>().join(", ");
        let more = match like_it.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let _ = writeln!(out, "{}So for {names}{more}.{}", ink.dim, ink.end);
    }
    let _ = writeln!(out);
    scores(&mut out, explanation, &ink);
    refusals(&mut out, explanation, &ink);
    pools(&mut out, explanation, &ink);
    let served = explanation.unserved.is_none();
    if served && !explanation.is_placed() || !explanation.changes.is_empty() {
        changes(&mut out, explanation, &ink);
    }
    if let Some(message) = &explanation.event {
        let _ = writeln!(out, "\n{}FailedScheduling: {message}{}", ink.dim, ink.end);
    }
    out.truncate(out.trim_end().len());
    out
}

fn headline(explanation: &Explanation, ink: &Ink) -> String {
    let Ink {
        bold,
        good,
        bad,
        end,
        ..
    } = ink;
    let pod = &explanation.pod;
    let nodes = &explanation.answer.nodes;
    let fitting = nodes.iter().filter(|node| node.fits).count();
    if let Some(why) = &explanation.passed_over {
        return format!("{bold}{pod}{end} is {bad}not scheduled{end}: {why}.\n");
    }
    let count = format!("{fitting} of {} nodes fit", nodes.len());
    if let Some(node) = &explanation.bound_to {
        let rank = match nodes.iter().find(|other| other.name == *node) {
            Some(own) if own.fits => {
                let better = nodes
                    .iter()
                    .filter(|other| other.fits && other.total > own.total);
                match better.count() {
                    0 => "it would be chosen again".to_owned(),
                    better => format!("{better} would be better today"),
                }
            }
            Some(_) => "it would not be let in today".to_owned(),
            None => "that node is gone".to_owned(),
        };
        return format!("{bold}{pod}{end} is {good}on {node}{end}: {count}, {rank}.\n");
    }
    if let Some(unserved) = &explanation.unserved {
        return format!(
            "{bold}{pod}{end} is {bad}scheduled by nobody{end}: its schedulerName is {}, and the scheduler's profiles are {}.\n\
             Give it one of these names; --scheduler-config FILE asks by another configuration of the scheduler.\n",
            unserved.scheduler_name,
            unserved.known.join(", ")
        );
    }
    if !explanation.gates.is_empty() {
        let gates = explanation.gates.join(", ");
        return format!(
            "{bold}{pod}{end} is {bad}held back{end} by its scheduling gates {gates}: {count} without them.\n"
        );
    }
    if let Some(best) = &explanation.answer.best {
        if let Some(node) = &explanation.nominated
            && best[..] == [node.clone()]
        {
            return format!(
                "{bold}{pod}{end} goes to {good}{node}{end}, which is promised to it: {count}.\n"
            );
        }
        let best = best.join(" or ");
        return format!("{bold}{pod}{end} goes to {good}{best}{end}: {count}.\n");
    }
    if let Some(node) = &explanation.nominated
        && explanation.waits_for_victims
    {
        return format!(
            "{bold}{pod}{end} waits on {good}{node}{end}, which is promised to it, until pods that are terminating there are gone: {count}.\n\
             Nothing need be changed.\n"
        );
    }
    if explanation.evicts() {
        return evictions(explanation, ink);
    }
    if let Some(claim) = &explanation.awaits {
        return format!(
            "{bold}{pod}{end} waits for a node that is on its way: {count}, and it fits on {good}{claim}{end}.\n"
        );
    }
    match &explanation.buys {
        Some(purchase) => format!(
            "{bold}{pod}{end} waits for a node: {count}, and {good}{}{end}.\n",
            sentence(purchase)
        ),
        None if explanation.pools.is_empty() => {
            format!("{bold}{pod}{end} is {bad}pending{end}: {count}.\n")
        }
        None => format!(
            "{bold}{pod}{end} is {bad}pending{end}: {count}, and no pool can buy one that does.\n"
        ),
    }
}

/// What a pod does that makes room for itself.
fn evictions(explanation: &Explanation, ink: &Ink) -> String {
    let Ink {
        bold, good, end, ..
    } = ink;
    let pod = &explanation.pod;
    let mut ways = explanation.answer.ways_to_evict();
    let Some(first) = ways.next() else {
        return String::new();
    };
    let victims = some_of(&first.victims);
    let count = explanation.answer.nodes.len();
    let mut words = format!(
        "{bold}{pod}{end} {good}makes room for itself on {}{end}: 0 of {count} nodes fit, and it preempts {victims}.\n",
        first.node
    );
    let others: Vec<_> = ways.map(|way| way.node.clone()).collect();
    if !others.is_empty() {
        let _ = writeln!(words, "Evictions on {} are as good.", some_of(&others));
    }
    words.push_str("Nothing need be changed.\n");
    words
}

/// A few names and how many more there are.
fn some_of(names: &[String]) -> String {
    let shown = names[..names.len().min(SHOWN)].join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn sentence(purchase: &Purchase) -> String {
    let shared = match purchase.pods {
        1 => String::new(),
        pods => format!(" for {pods} pods"),
    };
    format!(
        "NodePool {} buys {}{shared}",
        purchase.pool,
        machine(purchase)
    )
}

fn machine(purchase: &Purchase) -> String {
    format!(
        "1 x {}, {:.3} USD/h",
        purchase.instance_type, purchase.usd_per_hour
    )
}

/// The best nodes with what each plugin gave them.
fn scores(out: &mut String, explanation: &Explanation, ink: &Ink) {
    let mut fitting: Vec<&NodeRecord> = explanation
        .answer
        .nodes
        .iter()
        .filter(|node| node.fits)
        .collect();
    if fitting.is_empty() {
        return;
    }
    fitting.sort_by(|a, b| b.total.cmp(&a.total).then_with(|| a.name.cmp(&b.name)));
    let width = |nodes: &[&NodeRecord]| nodes.iter().map(|node| node.name.len()).max().unwrap_or(0);
    let shown = &fitting[..fitting.len().min(SHOWN)];
    let width = width(shown);
    let _ = writeln!(out, "  {}score{}", ink.bold, ink.end);
    for node in shown {
        let parts = node.scores.iter().flatten();
        let parts = parts.filter(|(_, score)| **score != 0);
        let parts: Vec<_> = parts
            .map(|(plugin, score)| format!("{plugin} {score}"))
            .collect();
        let _ = writeln!(
            out,
            "    {:>5}  {:width$}  {}{}{}",
            node.total,
            node.name,
            ink.dim,
            parts.join(", "),
            ink.end
        );
    }
    if let more @ 1.. = fitting.len() - shown.len() {
        let _ = writeln!(out, "           {}and {more} more{}", ink.dim, ink.end);
    }
}

fn refusals(out: &mut String, explanation: &Explanation, ink: &Ink) {
    if explanation.refusals.is_empty() {
        return;
    }
    let title = match explanation.answer.best {
        Some(_) => "nodes that refuse",
        None => "nodes",
    };
    let _ = writeln!(out, "  {}{title}{}", ink.bold, ink.end);
    for group in &explanation.refusals {
        let names = &group.nodes[..group.nodes.len().min(SHOWN)];
        let more = match group.nodes.len() - names.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let _ = writeln!(
            out,
            "    {:>5}  {:REASON_WIDTH$}  {}{}{more}{}",
            group.nodes.len(),
            group.reason,
            ink.dim,
            names.join(", "),
            ink.end
        );
    }
}

fn pools(out: &mut String, explanation: &Explanation, ink: &Ink) {
    if explanation.pools.is_empty() {
        return;
    }
    let width = explanation.pools.iter().map(|word| word.pool.len()).max();
    let width = width.unwrap_or(0);
    let _ = writeln!(out, "  {}pools{}", ink.bold, ink.end);
    for word in &explanation.pools {
        let _ = writeln!(out, "    {:width$}  {}", word.pool, word.reason);
    }
}

fn changes(out: &mut String, explanation: &Explanation, ink: &Ink) {
    let sets: &[ChangeSet] = &explanation.changes;
    if sets.is_empty() {
        let _ = writeln!(
            out,
            "\nNo change to the pod, a cordon or a limit places it: it needs another node or another pool."
        );
        return;
    }
    let title = match explanation.is_placed() {
        // The only thing that is wrong with a place.
        true => "Its image does not start on that Windows build. Smallest change that helps:",
        false => "Smallest change that places it:",
    };
    let _ = writeln!(out, "\n{}{title}{}", ink.bold, ink.end);
    for (index, set) in sets.iter().enumerate() {
        let lead = if index == 0 { "" } else { "or " };
        let what = format!("{lead}{}", set.changes.join(", and "));
        let place = match (&set.node, &set.buys) {
            (Some(node), _) => format!("then goes to {node}"),
            (None, Some(purchase)) => format!("then {}", sentence(purchase)),
            (None, None) => String::new(),
        };
        let _ = writeln!(
            out,
            "    {what:REASON_WIDTH$}  {}{place}{}",
            ink.dim, ink.end
        );
    }
}

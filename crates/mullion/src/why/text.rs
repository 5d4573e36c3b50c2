//! Prints an explanation for people.

use std::fmt::Write;

use super::{
    answer::NodeRecord,
    daemon::Daemon,
    explanation::{ChangeSet, Explanation, Unserved},
    outlook::{Costs, Purchase},
    page::{Colours, Page, Row},
};
use crate::plan::refusals::some_of;

/// The number of nodes named for each reason, and of nodes shown with their scores.
const SHOWN: usize = 4;
/// The width of the column of reasons; a longer reason shifts the names of its nodes to the right.
const REASON_WIDTH: usize = 56;

/// Returns the whole text about a pod and others like it, without a newline at its end; `width` is that of the terminal.
pub(super) fn text(
    explanation: &Explanation,
    like_it: &[&Explanation],
    colours: bool,
    width: Option<usize>,
) -> String {
    let mut page = Page::new(colours, width);
    page.paragraph(&headline(explanation, &page.colours));
    if let Some(why) = &explanation.resize {
        page.paragraph(&format!("Its resize waits: {why}."));
    }
    if let Some(start) = &explanation.start {
        page.paragraph(&format!("{}.", start.summary()));
        let rows = start.reasons().into_iter().map(|what| Row {
            lead: "    ".to_owned(),
            what,
            aside: String::new(),
        });
        page.rows(&rows.collect::<Vec<_>>(), 0);
        // The advice about the node is told below, where it depends on the images.
        if let Some(advice) = start.advice().filter(|_| explanation.wrong_node.is_none()) {
            page.paragraph(&format!("{advice}."));
        }
    }
    for image in &explanation.images {
        page.paragraph(&format!("{}.", image.text()));
    }
    if let Some(wrong) = &explanation.wrong_node {
        page.paragraph(&format!("{}.", wrong.reason));
        // What helps is said below where it was tried.
        if explanation.changes.is_empty() {
            page.paragraph(&format!("{}.", wrong.advice));
            if let Some(remains) = &wrong.remains {
                page.paragraph(&format!("{remains}."));
            }
        }
    }
    for wrong in &explanation.wrong_values {
        page.paragraph(&format!("{wrong}."));
    }
    if let Some(why) = &explanation.no_address {
        page.paragraph(&format!(
            "It gets no address, so that no sandbox is made for it: {why}."
        ));
    }
    if let Some(outage) = &explanation.outage {
        page.paragraph(&format!("{outage}."));
    }
    if let Some(why) = explanation
        .buys
        .as_ref()
        .and_then(|own| own.not_cheaper.as_ref())
    {
        page.dimmed(&format!("Nothing cheaper: {why}."));
    }
    if let Some(costs) = &explanation.costs {
        for line in paid_for(costs) {
            page.dimmed(&line);
        }
    }
    if !like_it.is_empty() {
        let names: Vec<_> = like_it.iter().map(|other| other.pod.clone()).collect();
        page.dimmed(&format!("So for {}.", some_of(&names)));
    }
    if !explanation.after.is_empty() {
        let after = some_of(&explanation.after);
        let verb = if explanation.after.len() == 1 {
            "has"
        } else {
            "have"
        };
        page.dimmed(&format!("That is once {after} {verb} made room."));
        // There may be many such pods, so the nodes' answers are printed for the first of them only.
        if explanation.evicts() {
            return page.end();
        }
    }
    page.blank();
    scores(&mut page, explanation);
    refusals(&mut page, explanation);
    pools(&mut page, explanation);
    let served = explanation.unserved.is_none();
    if served && !explanation.is_placed() || !explanation.changes.is_empty() {
        changes(&mut page, explanation, !like_it.is_empty());
    }
    if let Some(message) = &explanation.event {
        page.blank();
        page.dimmed(&format!("FailedScheduling: {message}"));
    }
    page.end()
}

fn headline(explanation: &Explanation, ink: &Colours) -> String {
    let Colours {
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
        return match &explanation.bound_to {
            Some(node) => format!("{bold}{pod}{end} was on {node}: {why}.\n"),
            None => format!("{bold}{pod}{end} is {bad}not scheduled{end}: {why}.\n"),
        };
    }
    let count = format!("{fitting} of {} nodes fit", nodes.len());
    let profiles = |unserved: &Unserved| match &unserved.known[..] {
        [only] => format!("the scheduler's only profile is {only}"),
        several => format!("the scheduler's profiles are {}", several.join(", ")),
    };
    let other = "--scheduler-config FILE asks by another configuration of the scheduler.\n";
    if let (Some(node), Some(unserved)) = (&explanation.bound_to, &explanation.unserved) {
        return format!(
            "{bold}{pod}{end} is {good}on {node}{end}: nothing says how its scheduler {} decides, for {}.\n{other}",
            unserved.scheduler_name,
            profiles(unserved),
        );
    }
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
    // What holds the pod back first is said alone: what nodes answer means little while nobody schedules the
    // pod.
    if let Some(unserved) = &explanation.unserved {
        let known = profiles(unserved);
        return format!(
            "{bold}{pod}{end} is {bad}scheduled by nobody{end}: its schedulerName is {}, and {known}.\n\
             Give it a name that is there; {other}",
            unserved.scheduler_name
        );
    }
    if !explanation.gates.is_empty() {
        let gates = explanation.gates.join(", ");
        return format!(
            "{bold}{pod}{end} is {bad}held back{end} by its scheduling gates {gates}: {count} without them.\n"
        );
    }
    if let Some(daemon) = &explanation.daemon {
        return daemons(pod, daemon, nodes.len(), ink);
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
    if let Some(node) = &explanation.only_node {
        let why = if explanation.refusals.is_empty() {
            "which is not there"
        } else {
            "which does not let it in"
        };
        return format!(
            "{bold}{pod}{end} is {bad}pending{end}: its DaemonSet made it for {node}, {why}.\n"
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

/// Returns the sentences about where the pods of a DaemonSet go.
fn daemons(pod: &str, daemon: &Daemon, nodes: usize, ink: &Colours) -> String {
    let Colours {
        bold,
        good,
        bad,
        end,
        ..
    } = ink;
    let fitting = daemon.runs_on.len();
    let mut words = match fitting {
        0 => format!("{bold}{pod}{end} goes to {bad}none of {nodes} nodes{end}.\n"),
        _ => format!(
            "{bold}{pod}{end} goes to {good}{fitting} of {nodes} nodes{end}, one each: {}.\n",
            some_of(&daemon.runs_on)
        ),
    };
    if !daemon.makes_room_on.is_empty() {
        let nodes = some_of(&daemon.makes_room_on);
        let _ = writeln!(words, "It makes room for itself on {nodes}.");
    }
    if !daemon.waits_on.is_empty() {
        let _ = writeln!(
            words,
            "It {bad}waits{end} on {}.",
            some_of(&daemon.waits_on)
        );
    }
    if daemon.unasked > 0 {
        let asked = daemon.makes_room_on.len() + daemon.waits_on.len() - daemon.unasked;
        let all = asked + daemon.unasked;
        let _ = writeln!(
            words,
            "Of the {all} nodes that do not let it in, the first {asked} were asked whether it makes room there."
        );
    }
    match daemon.left_out {
        0 => {}
        1 => words.push_str("1 node is not meant for it.\n"),
        more => drop(writeln!(words, "{more} nodes are not meant for it.")),
    }
    words
}

/// Returns the sentences about a pod that makes room by preemption.
fn evictions(explanation: &Explanation, ink: &Colours) -> String {
    let Colours {
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
    let addresses = purchase.addresses;
    let addresses = addresses.map(|count| format!(", addresses for {count} pods"));
    format!(
        "1 x {}, {:.3} USD/h{}",
        purchase.instance_type,
        purchase.usd_per_hour,
        addresses.unwrap_or_default()
    )
}

/// Returns the sentences about what other pools would cost, and what a requirement of the pod costs.
fn paid_for(costs: &Costs) -> Vec<String> {
    let mut lines = Vec::new();
    let these = match costs.pods {
        1 => "Alone it costs".to_owned(),
        pods => format!("The {pods} pods like it cost"),
    };
    let price = costs.usd_per_hour;
    if let Some(next) = &costs.next_pool {
        let (pools, other) = (next.pools.join(", "), next.usd_per_hour);
        let word = if next.pools.len() == 1 {
            "NodePool"
        } else {
            "NodePools"
        };
        lines.push(format!(
            "{these} {price:.3} USD/h; next best is {word} {pools}, {other:.3} USD/h."
        ));
    }
    if let Some(without) = &costs.without {
        lines.push(format!(
            "Without {}: {} % less ({:.3} instead of {price:.3} USD/h).",
            without.demand, without.percent_less, without.usd_per_hour
        ));
    }
    lines
}

/// Adds the best nodes with the scores that each plugin gave them.
fn scores(page: &mut Page, explanation: &Explanation) {
    let nodes = explanation.answer.nodes.iter();
    let mut fitting: Vec<&NodeRecord> = nodes.filter(|node| node.fits).collect();
    if fitting.is_empty() {
        return;
    }
    fitting.sort_by(|a, b| b.total.cmp(&a.total).then_with(|| a.name.cmp(&b.name)));
    let shown = &fitting[..fitting.len().min(SHOWN)];
    let rows = shown.iter().map(|node| {
        let parts = node.scores.iter().flatten();
        let parts = parts.filter(|(_, score)| **score != 0);
        let parts: Vec<_> = parts
            .map(|(plugin, score)| format!("{plugin} {score}"))
            .collect();
        Row {
            lead: format!("    {:>5}  ", node.total),
            what: node.name.clone(),
            aside: parts.join(", "),
        }
    });
    let rows: Vec<_> = rows.collect();
    let column = rows.iter().map(|row| row.what.len()).max();
    page.title("score");
    page.rows(&rows, column.unwrap_or(0));
    if let more @ 1.. = fitting.len() - shown.len() {
        page.dimmed(&format!("           and {more} more"));
    }
}

fn refusals(page: &mut Page, explanation: &Explanation) {
    if explanation.refusals.is_empty() {
        return;
    }
    page.title(match explanation.answer.best {
        Some(_) => "nodes that refuse",
        None => "nodes",
    });
    let rows = explanation.refusals.iter().map(|group| Row {
        lead: format!("    {:>5}  ", group.nodes.len()),
        what: group.reason.clone(),
        aside: some_of(&group.nodes),
    });
    page.rows(&rows.collect::<Vec<_>>(), REASON_WIDTH);
}

fn pools(page: &mut Page, explanation: &Explanation) {
    if explanation.pools.is_empty() {
        return;
    }
    let width = explanation.pools.iter().map(|word| word.pool.len()).max();
    let width = width.unwrap_or(0);
    let rows = explanation.pools.iter().map(|word| Row {
        lead: format!("    {:width$}  ", word.pool),
        what: word.reason.clone(),
        aside: String::new(),
    });
    page.title("pools");
    page.rows(&rows.collect::<Vec<_>>(), 0);
}

/// Prints the changes that would place the pod. `is_one_of_many` is whether other pods have the same explanation.
fn changes(page: &mut Page, explanation: &Explanation, is_one_of_many: bool) {
    page.blank();
    let sets: &[ChangeSet] = &explanation.changes;
    let broken = &explanation.broken_pools;
    if !broken.is_empty() && !explanation.is_placed() {
        let (are, may) = match broken.len() {
            1 => ("is", "it may buy a node for the pod once that is mended"),
            _ => ("are", "they may buy nodes for the pod once that is mended"),
        };
        page.paragraph(&format!(
            "{} {are} not ready for the reason above: {may}.",
            some_of(broken)
        ));
        if sets.is_empty() {
            return;
        }
    }
    if sets.is_empty() {
        return page.paragraph(&match (&explanation.prerequisite, explanation.wrong_system) {
            (Some(needed), _) => format!("No change to the pod places it: {needed}."),
            (None, Some(system)) => format!(
                "No change to the pod, a cordon or a pool places it: the pod asks for {system}, but one of its images does not run there."
            ),
            (None, None) if explanation.daemon.is_some() || explanation.only_node.is_some() => {
                "No change to the pod, a cordon or a pool places it there.".to_owned()
            }
            (None, None) => "No change to the pod, a cordon or a pool places it: it needs another node or another pool.".to_owned(),
        });
    }
    let Colours { bold, end, .. } = page.colours;
    let title = if explanation.is_placed() {
        // For a pod that has a place, nothing else can need a change.
        "Its image does not start on that Windows build. Smallest change that helps:"
    } else if is_one_of_many {
        "Smallest change that places the first of them, which may not be enough for all:"
    } else {
        "Smallest change that places it:"
    };
    page.paragraph(&format!("{bold}{title}{end}"));
    let rows = sets.iter().enumerate().map(|(index, set)| {
        let lead = if index == 0 { "" } else { "or " };
        let place = match (&set.node, &set.buys) {
            (Some(node), _) => format!("then goes to {node}"),
            (None, Some(purchase)) => format!("then {}", sentence(purchase)),
            (None, None) => String::new(),
        };
        Row {
            lead: "    ".to_owned(),
            what: format!("{lead}{}", set.changes.join(", and ")),
            aside: place,
        }
    });
    page.rows(&rows.collect::<Vec<_>>(), REASON_WIDTH);
}

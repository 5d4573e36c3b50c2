//! Prints a plan for people: how many pods go where, the nodes to buy, what they cost, which pods get no place and why.

use mullion_api::labels;
use mullion_engine::model::Quantity;

use super::{
    columns::{Alignment, Columns},
    count,
    options::PlanArgs,
    price::whole,
    refusals::{pools, refused, some_of, unplaced},
    report::{Amount, NewNode, Pods, Price, Report},
};
use crate::{
    input,
    why::page::{Colours, Page, Row},
};

/// The bytes of a gibibyte.
const GIB: f64 = (1_u64 << 30) as f64;

/// Returns the plan as text, without a newline at its end.
pub(super) fn text(
    report: &Report,
    args: &PlanArgs,
    colours: bool,
    width: Option<usize>,
) -> String {
    let mut page = Page::new(colours, width);
    page.paragraph(&headline(report, &page.colours));
    page.blank();
    nodes(&mut page, report, width);
    if args.pods {
        places(&mut page, report);
    }
    money(&mut page, report);
    unplaced(&mut page, &report.unplaced);
    refused(&mut page, &report.refused);
    pools(&mut page, report);
    for remark in &report.remarks {
        page.blank();
        page.dimmed(&format!("{remark}."));
    }
    help(&mut page, report, args);
    page.end()
}

fn headline(report: &Report, ink: &Colours) -> String {
    let Colours {
        bold,
        good,
        bad,
        end,
        ..
    } = ink;
    let pods = &report.pods;
    let without = match report.removed.as_slice() {
        [] => String::new(),
        nodes => format!("Without {}: ", nodes.join(", ")),
    };
    if pods.asked == 0 && !without.is_empty() {
        return format!("{bold}{without}{end}no pod needs another place.\n");
    }
    if pods.asked == 0 {
        return format!("{bold}No pod waits for a node{end}: nothing is bought.\n");
    }
    let mut parts = Vec::new();
    if pods.on_existing_nodes > 0 {
        let fit = if pods.on_existing_nodes == 1 {
            "fits"
        } else {
            "fit"
        };
        parts.push(format!(
            "{good}{} {fit} on the nodes there are{end}",
            pods.on_existing_nodes
        ));
    }
    if pods.on_new_nodes > 0 {
        let need = if pods.on_new_nodes == 1 {
            "needs"
        } else {
            "need"
        };
        let more = if pods.on_existing_nodes > 0 {
            " more"
        } else {
            ""
        };
        let nodes = count(report.nodes.len(), "node");
        parts.push(format!(
            "{good}{} {need} {nodes}{more}{end}",
            pods.on_new_nodes
        ));
    }
    if pods.unplaced > 0 {
        let have = if pods.unplaced == 1 { "has" } else { "have" };
        parts.push(format!("{bad}{} {have} no place{end}", pods.unplaced));
    }
    if pods.refused > 0 {
        let is = if pods.refused == 1 { "is" } else { "are" };
        parts.push(format!(
            "{bad}{} {is} refused by a quota{end}",
            pods.refused
        ));
    }
    format!(
        "{bold}{without}{}{end}: {}.\n",
        asked(pods),
        parts.join(", ")
    )
}

/// Returns what the plan is for, as in `3 pods and 2 chunks of CapacityBuffers`.
fn asked(pods: &Pods) -> String {
    let chunks = || format!("{} of CapacityBuffers", count(pods.chunks, "chunk"));
    match (pods.asked - pods.chunks, pods.chunks) {
        (own, 0) => count(own, "pod"),
        (0, _) => chunks(),
        (own, _) => format!("{} and {}", count(own, "pod"), chunks()),
    }
}

/// The columns that a narrow terminal can do without, the least important first.
const SPARE: [&str; 8] = [
    "or",
    "os",
    "addresses",
    "zone",
    "capacity",
    "memory GiB",
    "cpu",
    "pods",
];

/// Prints the nodes to buy; equal ones share a row. A terminal of `width` columns gets no more of the table than fits.
fn nodes(page: &mut Page, report: &Report, width: Option<usize>) {
    if report.nodes.is_empty() {
        return;
    }
    let mut groups: Vec<Vec<&NewNode>> = Vec::new();
    for node in &report.nodes {
        let like = |group: &Vec<&NewNode>| is_like(group[0], node);
        match groups.iter_mut().find(|group| like(group)) {
            Some(group) => group.push(node),
            None => groups.push(vec![node]),
        }
    }
    let mut table = Columns::new([
        ("nodes", Alignment::Right),
        ("pool", Alignment::Left),
        ("os", Alignment::Left),
        ("type", Alignment::Left),
        ("or", Alignment::Right),
        ("zone", Alignment::Left),
        ("capacity", Alignment::Left),
        ("pods", Alignment::Right),
        ("cpu", Alignment::Right),
        ("memory GiB", Alignment::Right),
        ("addresses", Alignment::Right),
        ("USD/h", Alignment::Right),
    ]);
    for group in &groups {
        let first = group[0];
        let or = match first.alternatives.len() {
            0 => String::new(),
            more => format!("+{more}"),
        };
        let price: f64 = group.iter().map(|node| node.usd_per_hour).sum();
        table.row([
            group.len().to_string(),
            first.node_pool.clone(),
            first.os.clone(),
            first.instance_type.clone(),
            or,
            zones(group),
            payment(first),
            group
                .iter()
                .map(|node| node.pods.len())
                .sum::<usize>()
                .to_string(),
            used(group, labels::CPU, cpu),
            used(group, labels::MEMORY, gib),
            used(group, labels::PRIVATE_IPV4, units),
            format!("{price:.3}"),
        ]);
    }
    let left_out = width.map_or_else(Vec::new, |width| table.narrow(width, &SPARE));
    // The heading `or` says nothing without its table.
    let left_out: Vec<&str> = left_out
        .into_iter()
        .map(|heading| {
            if heading == "or" {
                "alternatives"
            } else {
                heading
            }
        })
        .collect();
    for line in table.lines() {
        page.paragraph(&line);
    }
    if !left_out.is_empty() {
        page.dimmed(&format!(
            "  a wider terminal also shows: {}",
            left_out.join(", ")
        ));
    }
    page.blank();
}

/// Returns the capacity type of a node, followed by the capacity reservations that it may use.
fn payment(node: &NewNode) -> String {
    match node.capacity_reservations.as_slice() {
        [] => node.capacity_type.clone(),
        ids => format!("{} {}", node.capacity_type, ids.join("|")),
    }
}

fn is_like(a: &NewNode, b: &NewNode) -> bool {
    let kind = |node: &NewNode| {
        (
            node.node_pool.clone(),
            node.instance_type.clone(),
            payment(node),
            node.alternatives.len(),
        )
    };
    kind(a) == kind(b)
}

/// Returns the zones of nodes: the only one, or the region with the letters of all zones that are possible.
fn zones(group: &[&NewNode]) -> String {
    let mut all: Vec<&String> = group.iter().flat_map(|node| &node.zones).collect();
    all.sort();
    all.dedup();
    match all.as_slice() {
        [only] => (*only).clone(),
        several => {
            let letters = several.iter().filter_map(|zone| zone.chars().last());
            let letters: Vec<_> = letters.map(String::from).collect();
            let region = several[0].trim_end_matches(|c: char| c.is_ascii_lowercase());
            format!("{region}{}", letters.join(","))
        }
    }
}

/// Returns the requested and the allocatable amount of a resource on these nodes, as in `7.1/7.9`. It is empty if nothing is requested, except for
/// CPU and memory.
fn used(group: &[&NewNode], resource: &str, write: fn(Quantity) -> String) -> String {
    let amounts = group.iter().filter_map(|node| node.resources.get(resource));
    let sum = sum(amounts);
    let is_always_shown = resource == labels::CPU || resource == labels::MEMORY;
    if sum.requested.is_zero() && !is_always_shown {
        String::new()
    } else {
        format!("{}/{}", write(sum.requested), write(sum.allocatable))
    }
}

fn sum<'a>(amounts: impl Iterator<Item = &'a Amount>) -> Amount {
    amounts.fold(Amount::default(), |sum, own| Amount {
        requested: sum.requested.saturating_add(own.requested),
        daemon_sets: sum.daemon_sets.saturating_add(own.daemon_sets),
        allocatable: sum.allocatable.saturating_add(own.allocatable),
        capacity: sum.capacity.saturating_add(own.capacity),
    })
}

fn cpu(amount: Quantity) -> String {
    format!("{:.1}", amount.milli_value() as f64 / 1000.0)
}

fn gib(amount: Quantity) -> String {
    format!("{:.1}", amount.value() as f64 / GIB)
}

fn units(amount: Quantity) -> String {
    amount.value().to_string()
}

/// Prints which pods go where.
pub(super) fn places(page: &mut Page, report: &Report) {
    if !report.existing.is_empty() {
        page.title("pods on nodes that are there");
        let rows = report.existing.iter().map(|(node, pods)| Row {
            lead: "    ".to_owned(),
            what: format!("{node}: {}", pods.join(", ")),
            aside: String::new(),
        });
        page.rows(&rows.collect::<Vec<_>>(), 0);
        page.blank();
    }
    if !report.nodes.is_empty() {
        page.title("pods on new nodes");
        let rows = report.nodes.iter().enumerate().map(|(index, node)| Row {
            lead: format!("    {:>3}  ", index + 1),
            what: format!(
                "{} {}: {}",
                node.node_pool,
                node.instance_type,
                node.pods.join(", ")
            ),
            aside: String::new(),
        });
        page.rows(&rows.collect::<Vec<_>>(), 0);
        page.blank();
    }
}

fn money(page: &mut Page, report: &Report) {
    let Price {
        before_usd_per_hour: before,
        after_usd_per_hour: after,
        before_usd_per_month,
        after_usd_per_month,
        unpriced_nodes,
        leaving_nodes,
        bound_usd_per_hour: bound,
        gap_percent: gap,
        ..
    } = &report.price;
    let mut rows = Vec::new();
    let mut row = |what: &str, text: String| {
        rows.push(Row {
            lead: format!("  {what:14}"),
            what: text,
            aside: String::new(),
        });
    };
    let more = after - before;
    let word = if more < 0.0 { "less" } else { "more" };
    if !report.nodes.is_empty() || !report.removed.is_empty() {
        row(
            "USD an hour",
            format!("{before:.3} now, {after:.3} then: {:.3} {word}", more.abs()),
        );
        row(
            "USD a month",
            format!(
                "{} now, {} then",
                whole(*before_usd_per_month),
                whole(*after_usd_per_month)
            ),
        );
    }
    if let (Some(bound), Some(gap)) = (bound, gap) {
        row("at least", at_least(*bound, *gap));
    }
    if !report.nodes.is_empty() {
        row("taken", taken(&report.nodes));
    } else if report.removed.is_empty() && report.pods.asked > 0 && *before > 0.0 {
        row("USD an hour", format!("{before:.3}, as now"));
    }
    if !unpriced_nodes.is_empty() && !report.nodes.is_empty() {
        let nodes = count(unpriced_nodes.len(), "node");
        row(
            "not counted",
            format!("{nodes} of unknown price: {}", some_of(unpriced_nodes)),
        );
    }
    if !leaving_nodes.is_empty() {
        let nodes = count(leaving_nodes.len(), "node");
        let verb = if leaving_nodes.len() == 1 {
            "goes"
        } else {
            "go"
        };
        row(
            "not counted",
            format!("{nodes} that {verb} already: {}", some_of(leaving_nodes)),
        );
    }
    page.rows(&rows, 0);
}

/// Returns how far the price of the new nodes is above the lower bound.
fn at_least(bound: f64, gap: f64) -> String {
    let near = if gap > 0.0 {
        format!("this plan is within {gap:.1} %")
    } else {
        "no plan is cheaper".to_owned()
    };
    format!("{bound:.3} an hour for new nodes, however these pods are packed: {near}")
}

/// Returns how much of the new nodes the system and DaemonSets take.
fn taken(nodes: &[NewNode]) -> String {
    let of = |resource: &str| {
        let amounts = nodes.iter().filter_map(|node| node.resources.get(resource));
        sum(amounts)
    };
    let (processors, memory) = (of(labels::CPU), of(labels::MEMORY));
    let reserved = |amount: &Amount| amount.capacity.saturating_sub(amount.allocatable);
    let amounts = |processors, memory| format!("{} cpu and {} GiB", cpu(processors), gib(memory));
    let (own, own_memory) = (processors.daemon_sets, memory.daemon_sets);
    let daemons = if own.is_zero() && own_memory.is_zero() {
        String::new()
    } else {
        format!(", DaemonSets take {}", amounts(own, own_memory))
    };
    format!(
        "of {} the system keeps {}{daemons}",
        amounts(processors.capacity, memory.capacity),
        amounts(reserved(&processors), reserved(&memory)),
    )
}

/// Prints the command that says what would help a pod without a place.
fn help(page: &mut Page, report: &Report, args: &PlanArgs) {
    let first = report.unplaced_pods().next();
    if let Some(pod) = first.filter(|_| !args.offline) {
        page.blank();
        let is_coming = report.coming.contains(pod);
        // `mullion why -f` asks about one pod of each workload, which may have a place although others have none.
        let whom = if is_coming {
            " one pod of each workload"
        } else {
            ""
        };
        page.dimmed(&format!(
            "What would help{whom}: {}",
            why(pod, is_coming, args)
        ));
    }
}

/// Returns the `mullion why` command for a pod without a place; it names the manifests if the pod comes from one of them.
fn why(pod: &str, is_coming: bool, args: &PlanArgs) -> String {
    let mut words = vec!["mullion why".to_owned()];
    if let Some(path) = &args.state {
        words.push(format!("--state {}", input_path(path)));
    }
    if is_coming {
        let files = args.filename.iter();
        words.extend(files.map(|path| format!("-f {}", input_path(path))));
    } else {
        let (namespace, name) = pod.split_once('/').unwrap_or(("default", pod));
        words.push(format!("pod {name}"));
        if namespace != "default" {
            words.push(format!("-n {namespace}"));
        }
    }
    words.join(" ")
}

fn input_path(path: &std::path::Path) -> String {
    if input::is_stdin(path) {
        "-".to_owned()
    } else {
        path.display().to_string()
    }
}

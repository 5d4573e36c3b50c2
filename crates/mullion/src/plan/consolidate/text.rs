//! Prints what consolidation would do for people.

use super::{Answer, ConsolidationMove};
use crate::{
    plan::{
        count,
        price::{a_month, whole},
        refusals::some_of,
    },
    why::page::{Colours, Page, Row},
};

impl Answer {
    /// Returns the answer as text for people, without a newline at its end.
    pub(in crate::plan) fn text(&self, colours: bool, width: Option<usize>) -> String {
        let mut page = Page::new(colours, width);
        if !self.what_if.is_empty() {
            page.paragraph(&format!("What if: {}.", self.what_if.join("; ")));
            page.blank();
        }
        page.paragraph(&self.headline(&page.colours));
        page.blank();
        for made in &self.moves {
            made.print(&mut page);
        }
        if !self.moves.is_empty() && self.bound_usd_per_hour > 0.0 {
            page.paragraph(&format!(
                "  Machines for the pods of all nodes that may go, bought anew, would cost {:.3} USD an hour at least.",
                self.bound_usd_per_hour
            ));
            page.blank();
        }
        if !self.stays.is_empty() {
            page.title("nodes that stay");
            let rows = self.stays.iter().map(|group| Row {
                lead: format!("    {:>5}  ", group.nodes.len()),
                what: group.reason.clone(),
                aside: some_of(&group.nodes),
            });
            page.rows(&rows.collect::<Vec<_>>(), 56);
        }
        for remark in &self.remarks {
            page.blank();
            page.dimmed(&format!("{remark}."));
        }
        page.end()
    }

    fn headline(&self, ink: &Colours) -> String {
        let Colours {
            bold, good, end, ..
        } = ink;
        let (before, after) = (self.before_usd_per_hour, self.after_usd_per_hour);
        let going: usize = self.moves.iter().map(|made| made.nodes.len()).sum();
        let mut nodes = count(self.nodes, "node");
        let mut none = "none can go";
        match self.leaving_nodes.len() {
            0 => {}
            leaving => {
                let verbs = if leaving == 1 {
                    "goes already and is"
                } else {
                    "go already and are"
                };
                nodes += &format!(" ({leaving} {verbs} not counted in the price)");
                none = "none of the others can go";
            }
        }
        if going == 0 {
            return format!("{bold}{nodes}, {before:.3} USD an hour{end}: {none}.\n");
        }
        let bought: usize = self.moves.iter().map(|made| made.replacements.len()).sum();
        let instead = match bought {
            0 => String::new(),
            bought => format!(", {bought} bought in their place"),
        };
        let saving = before - after;
        format!(
            "{bold}{nodes}{end}: {good}{going} can go{end}{instead}. {before:.3} USD an hour now, {after:.3} then: {saving:.3} less, {} a month.\n",
            whole(a_month(saving))
        )
    }
}

impl ConsolidationMove {
    /// Prints the move: a title line, then rows.
    pub(in crate::plan) fn print(&self, page: &mut Page) {
        let nodes: Vec<String> = self
            .nodes
            .iter()
            .map(|node| format!("{} ({:.3})", node.node, node.usd_per_hour))
            .collect();
        page.title(&format!(
            "{} USD/h less: {} {}",
            format_args!("{:.3}", self.saving_usd_per_hour),
            nodes.join(", "),
            if self.nodes.len() == 1 { "goes" } else { "go" },
        ));
        let mut rows = Vec::new();
        let mut row = |what: String| {
            rows.push(Row {
                lead: "    ".to_owned(),
                what,
                aside: String::new(),
            });
        };
        for node in &self.replacements {
            let or = match node.alternatives {
                0 => String::new(),
                more => format!(" (or {})", count(more, "other")),
            };
            row(format!(
                "{} buys 1 x {}{or}, {} in {}, {:.3} USD/h, for {}",
                node.node_pool,
                node.instance_type,
                node.capacity_type,
                node.zone,
                node.usd_per_hour,
                count(node.pods.len(), "pod"),
            ));
        }
        for (node, pods) in &self.existing {
            let verb = if pods.len() == 1 { "moves" } else { "move" };
            row(format!("{} {verb} to {node}", some_of(pods)));
        }
        if self.existing.is_empty() && self.replacements.is_empty() {
            row("no pod has to move".to_owned());
        }
        let twice = if self.replacements.is_empty() {
            String::new()
        } else {
            format!(
                ", and {:.3} USD once while new nodes boot",
                self.paid_twice_usd
            )
        };
        row(format!("costs {:.1} of disruption{twice}", self.disruption));
        page.rows(&rows, 0);
        page.blank();
    }
}

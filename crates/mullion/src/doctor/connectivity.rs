//! Implements `mullion connectivity test`: it tests the network checklist of Kubernetes' guide for Windows containers, one path of traffic
//! after the other.
//!
//! It runs the probes of [`super::network`] and judges them as `mullion doctor --network` does, but by the answers alone: what objects say
//! about the network does not count here. Invariant: the test passes only if something was measured and every path that was to be tested is
//! open.

use std::{cell::Cell, time::Duration};

use clap::Args;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    Format, Row,
    findings::Outcome,
    formats,
    network::{Answer, IMAGE, Probes, TrafficPath},
    report, rows, snapshot,
    snapshot::Snapshot,
    table,
};
use crate::{cli::duration, failure::Failure, out, why::source};

/// Flags of `mullion connectivity test`.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Ends with 0 if every way is open, with 1 if one is shut or could not be tried, with 2 if the cluster cannot be asked.

Examples:
  mullion connectivity test
  mullion connectivity test --context production -o json
  mullion connectivity test --probe-image registry.example.com/agnhost:2.53"
)]
pub(crate) struct TestArgs {
    /// The cluster's kubeconfig [default: $KUBECONFIG, else that of `mullion up`, else ~/.kube/config]
    #[arg(long, value_name = "PATH")]
    kubeconfig: Option<std::path::PathBuf>,

    /// The kubeconfig's context
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// The image of the pods: one with curl and agnhost for both systems
    #[arg(long, value_name = "IMAGE", default_value = IMAGE)]
    probe_image: String,

    /// Give up after this long; what was made is removed all the same
    #[arg(long, value_name = "TIME", default_value = "12m", value_parser = duration)]
    timeout: Duration,

    /// How to print the results
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

/// Tests every path. Returns true if all are open.
pub(crate) async fn run(args: TestArgs) -> Result<bool, Failure> {
    let (client, server) = source::client(args.kubeconfig, args.context).await?;
    let mut snapshot = snapshot::take(&client, &server).await?;
    let is_late = Cell::new(false);
    let stop = async {
        tokio::select! {
            () = super::interrupted() => {}
            () = sleep(args.timeout) => is_late.set(true),
        }
    };
    let probes = super::probes(&client, &snapshot, &args.probe_image, stop).await;
    snapshot.probes = probes.map_err(|failure| {
        if is_late.get() {
            failure.hint(format!(
            "{} s were not enough: images may take long to be pulled, so give more with --timeout",
            args.timeout.as_secs()
        ))
        } else {
            failure
        }
    })?;
    let rows = judged(&snapshot);
    match args.output {
        Format::Text => out::line(&page(&snapshot, &rows, out::colours(), out::width())),
        Format::Json => out::line(&json(&snapshot, &rows).to_string()),
    }
    Ok(passes(&rows))
}

/// Returns the network checks with what the probes found.
fn judged(snapshot: &Snapshot) -> Vec<Row> {
    let rows = table::of(true).map(|check| Row {
        check,
        found: rows::reach::tried(snapshot, check.id),
    });
    rows.collect()
}

/// Returns whether something was measured, and no path is blocked or untested.
fn passes(rows: &[Row]) -> bool {
    let outcomes = || rows.iter().map(|row| row.found.outcome());
    // An empty answer must not pass: a cluster in which nothing could be tried would look healthy.
    let is_bad = |outcome| matches!(outcome, Outcome::Failed | Outcome::Unknown);
    !outcomes().any(is_bad) && outcomes().any(|outcome| outcome == Outcome::Ok)
}

/// Returns the paths that were tested, with their answers; none if nothing was measured.
fn tested_paths(snapshot: &Snapshot) -> impl Iterator<Item = (&TrafficPath, &Answer)> {
    let tried = match &snapshot.probes {
        Probes::Tried(answers) => Some(answers),
        Probes::None(_) => None,
    };
    tried.into_iter().flatten()
}

/// Returns the text for people: each path, then the checklist with the usual remedies for blocked paths.
fn page(snapshot: &Snapshot, rows: &[Row], colours: bool, width: Option<usize>) -> String {
    let mut lines: Vec<_> = tested_paths(snapshot)
        .map(|(way, answer)| match answer {
            Answer::Answered(seconds) => format!("open  {:>6.0} ms  {way}", seconds * 1000.0),
            Answer::Failed(why) => format!("shut             {way}: {why}"),
            Answer::Untried(needed) => format!("not tried        {way}: needs {needed}"),
        })
        .collect();
    if lines.is_empty() {
        lines.push("Nothing is measured.".to_owned())
    } else {
        lines.push(String::new())
    }
    lines.push(report::page(snapshot, rows, false, colours, width));
    lines.join("\n")
}

/// Returns the JSON object for programs: that of `mullion doctor`, plus the paths.
fn json(snapshot: &Snapshot, rows: &[Row]) -> Value {
    let ways = tested_paths(snapshot).map(|(way, answer)| {
        let (result, seconds, why) = match answer {
            Answer::Answered(seconds) => ("open", Some(*seconds), None),
            Answer::Failed(why) => ("shut", None, Some(why)),
            Answer::Untried(needed) => ("untried", None, Some(needed)),
        };
        json!({"way": way.to_string(), "result": result, "seconds": seconds, "why": why})
    });
    let ways: Vec<_> = ways.collect();
    let mut object = formats::object(snapshot, rows);
    object["passed"] = json!(passes(rows));
    object["ways"] = json!(ways);
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::network::tests::all_open;

    fn of(probes: Probes) -> (bool, String, Value) {
        let mut snapshot = Snapshot::empty();
        snapshot.probes = probes;
        let rows = judged(&snapshot);
        let text = page(&snapshot, &rows, false, None);
        (passes(&rows), text, json(&snapshot, &rows))
    }

    #[test]
    fn the_test_passes_when_all_ways_are_open_whatever_objects_say() {
        let (passed, text, object) = of(Probes::Tried(all_open()));
        assert!(passed && object["passed"] == true);
        insta::assert_snapshot!(text);
    }

    #[test]
    fn a_way_that_is_shut_fails_the_test_and_is_named_with_what_opens_it() {
        let mut answers = all_open();
        let first = *answers.keys().next().expect("there are ways");
        let last = *answers.keys().next_back().expect("there are ways");
        answers.insert(first, Answer::Failed("no answer within 5 s".to_owned()));
        answers.insert(last, Answer::Untried("the pod a".to_owned()));
        let (passed, text, object) = of(Probes::Tried(answers));
        assert!(!passed && object["passed"] == false);
        assert_eq!(object["ways"][0]["result"], "shut");
        insta::assert_snapshot!(text);
    }

    #[test]
    fn one_way_that_was_not_tried_fails_the_test() {
        let mut answers = all_open();
        let first = *answers.keys().next().expect("there are ways");
        answers.insert(first, Answer::Untried("the pod a".to_owned()));
        assert!(!of(Probes::Tried(answers)).0);
    }

    #[test]
    fn where_nothing_is_measured_nothing_passes() {
        let (passed, text, object) = of(Probes::None("ready nodes that are real".to_owned()));
        assert!(!passed && object["ways"] == json!([]));
        assert!(text.starts_with("Nothing is measured."), "{text}");
    }
}

//! `mullion doctor`: whether a cluster can run Windows, row by row of EKS's requirements, and what mends it.
//!
//! [`snapshot`] asks the cluster once, [`rows`] holds the rows as pure functions of what it said, and [`table`] their ids and words. What a
//! row found is data ([`found`]); [`report`] and [`formats`] print it. A [`change`] is what mends a problem: [`fix`] shows each, asks, and
//! makes it. Nothing is changed without `--fix`, and a row whose input could not be had says which permission or call was missing.

mod account;
mod change;
mod explain;
mod fix;
mod formats;
mod found;
mod kinds;
mod report;
mod rows;
mod snapshot;
mod table;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::{failure::Failure, out, why::source};
use found::{Found, Outcome};
use snapshot::Snapshot;
use table::Check;

/// Flags of `mullion doctor`.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Ends with 0 if no check failed, with 1 if one did, with 2 if the cluster cannot be asked.

Examples:
  mullion doctor
  mullion doctor --fix
  mullion doctor --fix --yes --context production
  mullion doctor -o json
  mullion doctor --explain DOC10"
)]
pub(crate) struct DoctorArgs {
    /// The cluster's kubeconfig [default: $KUBECONFIG, else that of `mullion up`, else ~/.kube/config]
    #[arg(long, value_name = "PATH")]
    kubeconfig: Option<PathBuf>,

    /// The kubeconfig's context
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// Mend what can be mended; each change is shown and asked for
    #[arg(long)]
    fix: bool,

    /// Make the changes without asking
    #[arg(long, requires = "fix")]
    yes: bool,

    /// Say what a check is about
    #[arg(long, value_name = "ID", conflicts_with = "fix")]
    explain: Option<String>,

    /// How to print the results
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people
    Text,
    /// One JSON object
    Json,
}

/// A check and what it found.
struct Row {
    check: &'static Check,
    found: Found,
}

/// Asks every check. True if none failed.
pub(crate) async fn run(args: DoctorArgs) -> Result<bool, Failure> {
    if let Some(id) = &args.explain {
        out::line(&explain::check(id)?);
        return Ok(true);
    }
    let (client, server) = source::client(args.kubeconfig, args.context).await?;
    let mut snapshot = snapshot::take(&client, &server).await?;
    let mut rows = examine(&snapshot);
    if args.fix {
        (snapshot, rows) = fix::mend(&client, snapshot, rows, args.yes).await?;
    }
    match args.output {
        Format::Text => out::line(&report::page(
            &snapshot,
            &rows,
            !args.fix,
            out::colours(),
            out::width(),
        )),
        Format::Json => out::line(&formats::json(&snapshot, &rows)),
    }
    Ok(!rows
        .iter()
        .any(|row| row.found.outcome() == Outcome::Failed))
}

/// Returns every check with what it finds in a snapshot.
fn examine(snapshot: &Snapshot) -> Vec<Row> {
    let rows = table::all().map(|check| Row {
        check,
        found: (check.run)(snapshot).unwrap_or_else(Found::from),
    });
    rows.collect()
}

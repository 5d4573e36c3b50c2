//! Implements `mullion doctor`: whether a cluster can run Windows pods, checked against EKS's requirements one by one, and what fixes the
//! problems.
//!
//! [`snapshot`] reads the cluster once, [`rows`] has the checks as pure functions of that snapshot, and [`table`] has their IDs and texts.
//! What a check found is data ([`findings`]); [`report`] and [`formats`] print it. A [`change`] fixes a problem: [`fix`] shows each one, asks
//! for confirmation, and makes it. Nothing is changed without `--fix`, and a check whose input could not be read says which permission or
//! call was missing. `--network` runs the checks about traffic, for which [`network`] runs probe pods; [`connectivity`] is the command for
//! these alone.

mod account;
mod change;
pub(crate) mod connectivity;
mod explain;
mod findings;
mod fix;
mod formats;
mod kinds;
mod network;
mod report;
mod request;
mod rows;
mod snapshot;
mod table;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use kube::Client;

use crate::{failure::Failure, out, up, why::source};
use findings::{Findings, Outcome};
use network::Probes;
use snapshot::{Snapshot, Unknown};
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
  mullion doctor --network
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

    /// Try the ways that traffic takes, with pods on real nodes that are removed again; the other checks are not made
    #[arg(long, conflicts_with = "fix")]
    network: bool,

    /// The image of the pods: one with curl and agnhost for both systems
    #[arg(long, value_name = "IMAGE", requires = "network", default_value = network::IMAGE)]
    probe_image: String,

    /// Say what a check is about
    #[arg(long, value_name = "ID", conflicts_with_all = ["fix", "network"])]
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

/// A check and its result.
struct Row {
    check: &'static Check,
    found: Findings,
}

/// Runs the command. Returns true if no check failed.
pub(crate) async fn run(args: DoctorArgs) -> Result<bool, Failure> {
    if let Some(id) = &args.explain {
        out::line(&explain::check(id)?);
        return Ok(true);
    }
    let (client, server) = source::client(args.kubeconfig, args.context).await?;
    let mut snapshot = snapshot::take(&client, &server).await?;
    if args.network {
        snapshot.probes = probes(&client, &snapshot, &args.probe_image, interrupted()).await?;
    }
    let mut rows = examine(&snapshot, args.network);
    if args.fix {
        (snapshot, rows) = fix::apply_fixes(&client, snapshot, rows, args.yes).await?;
    }
    match args.output {
        Format::Text => out::line(&report::page(
            &snapshot,
            &rows,
            !args.fix && !args.network,
            out::colours(),
            out::width(),
        )),
        Format::Json => out::line(&formats::json(&snapshot, &rows)),
    }
    Ok(!rows
        .iter()
        .any(|row| row.found.outcome() == Outcome::Failed))
}

/// Waits until the user interrupts the command.
async fn interrupted() {
    if let Err(error) = up::interrupted().await {
        tracing::debug!("no signal can be heard: {error}");
        // Ending here would look like an interruption and stop the probes at once.
        std::future::pending::<()>().await;
    }
}

/// Runs the probes between the real nodes of a cluster, until `stop` ends.
async fn probes(
    client: &Client,
    snapshot: &Snapshot,
    image: &str,
    stop: impl Future<Output = ()>,
) -> Result<Probes, Failure> {
    let hosts = match network::hosts(snapshot) {
        Ok(hosts) => hosts,
        Err(Unknown(missing)) => return Ok(Probes::None(missing)),
    };
    if hosts.is_empty() {
        let needed = "ready nodes that are real: on simulated ones nothing is measured";
        return Ok(Probes::None(needed.to_owned()));
    }
    network::probe::measure(client, &hosts, image, stop).await
}

/// Returns the network checks, or all others, with what they find in a snapshot.
fn examine(snapshot: &Snapshot, network: bool) -> Vec<Row> {
    let rows = table::of(network).map(|check| Row {
        check,
        found: (check.run)(snapshot).unwrap_or_else(Findings::from),
    });
    rows.collect()
}

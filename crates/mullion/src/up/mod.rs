//! `mullion up`: runs a whole cluster in this process until Ctrl-C.
//!
//! [`plan`] converts flags to a [`plan::Plan`] and refuses wrong input before anything starts. [`cluster`] starts and stops the parts,
//! [`banner`] describes the cluster, [`progress`] reports the progress of nodes, and [`detach`] moves all of it to the background.

mod account;
mod banner;
pub(crate) mod cluster;
pub(crate) mod detach;
mod faults;
pub(crate) mod image_placement;
pub(crate) mod images;
mod inert_fields;
mod karpenter;
mod logs;
mod metrics;
pub(crate) mod node_profiles;
pub(crate) mod nodes;
pub(crate) mod plan;
mod pod_rules;
pub(crate) mod port;
pub(crate) mod progress;
pub(crate) mod published;
pub(crate) mod scheduler_config;
pub(crate) mod settings;
pub(crate) mod setup;
pub(crate) mod story;

use std::{pin::pin, time::Duration};

use jiff::SignedDuration;
use tokio::signal;

use crate::{cli::UpArgs, failure::Failure, input, out};

pub(crate) use self::banner::quoted;
use self::{
    cluster::Cluster,
    nodes::Machine,
    plan::{OutputOptions, Plan},
    progress::{Progress, ShownNodes},
};

/// Starts a cluster in the background. Returns the exit code of its process if the process ended instead.
pub(crate) fn in_background(args: &UpArgs) -> Result<Option<i32>, Failure> {
    detach::start(args.config.as_deref().is_some_and(input::is_stdin))
}

/// Runs a cluster until it is interrupted; a second interrupt ends the process at once.
pub(crate) async fn run(args: UpArgs) -> Result<(), Failure> {
    let shown = OutputOptions::of(&args);
    // All wrong input is found here, before a port is taken or a file written.
    let plan = Plan::from_args(args)?;
    for remark in plan.remarks.iter().filter(|_| !shown.is_silent()) {
        out::note(remark);
    }
    let cluster = Cluster::start(plan).await?;
    // From here on an interrupt stops the cluster in order; during the start it simply ends the process.
    let mut interrupted = pin!(interrupts());
    let begun = tokio::select! {
        begun = announce(&cluster, &shown) => begun,
        early = &mut interrupted => early.map(|()| None),
    };
    let done = match begun {
        Ok(Some(progress)) => {
            let ended = interrupted.await;
            if let Some(progress) = progress {
                progress.end().await;
            }
            ended
        }
        Ok(None) => Ok(()),
        Err(failure) => {
            let name = cluster.plan.name.clone();
            let kept = cluster.plan.directory.clone();
            cluster.stop().await;
            return Err(failure.add(&match kept {
                Some(directory) => format!(
                    "; cluster {name} is stopped and kept in {}",
                    directory.display()
                ),
                None => format!("; cluster {name} is stopped"),
            }));
        }
    };
    out::note("stopping; Ctrl-C again ends it at once");
    let forgotten = cluster
        .log
        .clone()
        .filter(|_| cluster.plan.directory.is_none());
    cluster.stop().await;
    if let Some(log) = forgotten.filter(|_| done.is_ok()) {
        // The log of a cluster in memory is of no use after it has stopped without an error.
        let _ = std::fs::remove_file(log);
    }
    done
}

/// Prints the cluster's description, waits for the nodes if `--wait` was given, and detaches from the terminal if `--detach` was. Returns
/// the progress display, if it continues.
async fn announce(
    cluster: &Cluster,
    shown: &OutputOptions,
) -> Result<Option<Option<Progress>>, Failure> {
    let nodes = cluster.machines();
    if !shown.is_silent() {
        let end = if shown.detached {
            ""
        } else {
            "Ctrl-C stops the cluster."
        };
        out::line(banner::text(cluster, &nodes, end, out::colours()).trim_end());
    }
    let tells = |seen| {
        let tells = shown.tells_of_nodes;
        tells.then(|| cluster.progress(seen)).flatten()
    };
    let mut progress = tells(ShownNodes::now(nodes));
    // If nodes have been shown until here, the next progress display continues from that state.
    let mut seen = None;
    if let Some(patience) = shown.wait {
        let ready = cluster.nodes_ready(patience).await;
        if shown.detached
            && let Some(progress) = progress.take()
        {
            seen = progress.end().await;
        }
        match ready {
            Ok(_) if shown.is_silent() => {}
            Ok(1) => out::line("The node is ready."),
            Ok(nodes) => out::line(&format!("All {nodes} nodes are ready.")),
            Err(late) => {
                if let Some(progress) = progress {
                    progress.end().await;
                }
                return Err(not_ready(&late, patience));
            }
        }
    }
    if let Some(log) = &cluster.log {
        if let Some(progress) = progress.take() {
            seen = progress.end().await;
        }
        let pid = std::process::id();
        out::line(&if shown.quiet {
            pid.to_string()
        } else {
            format!(
                "It runs in the background as process {pid} and logs to {}\n`mullion down {}` stops it.",
                log.display(),
                cluster.plan.name
            )
        });
        detach::detach_from_terminal(log)?;
        progress = tells(seen.unwrap_or_else(|| ShownNodes::now(cluster.machines())));
    }
    Ok(Some(progress))
}

fn not_ready(late: &[Machine], patience: Duration) -> Failure {
    let [first, others @ ..] = late else {
        return Failure::run("the nodes became ready too late");
    };
    let others = match others.len() {
        0 => String::new(),
        others => format!(" and {others} more"),
    };
    let patience = SignedDuration::try_from(patience).unwrap_or(SignedDuration::MAX);
    Failure::run(format!(
        "not all nodes are ready after {patience:#}: {} ({}){others}",
        first.name, first.kind.image
    ))
    .hint("wait longer with --wait=20m, or make simulated delays shorter with --speed 100")
}

/// Resolves at the first interrupt; the second one ends the process. A separate thread waits for signals, so that they work whatever the
/// cluster's tasks do.
pub(crate) async fn interrupts() -> Result<(), Failure> {
    let failed =
        |error: std::io::Error| Failure::run(format!("signals cannot be waited for: {error}"));
    let (first, heard) = tokio::sync::oneshot::channel();
    let wait = move || {
        let runtime = match tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
        {
            Ok(runtime) => runtime,
            Err(error) => return drop(first.send(Err(error))),
        };
        let answer = runtime.block_on(interrupted());
        let goes_on = answer.is_ok();
        // The receiver may be gone, because the process is ending.
        drop(first.send(answer));
        if goes_on && runtime.block_on(interrupted()).is_ok() {
            std::process::exit(130);
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(wait)
        .map_err(failed)?;
    match heard.await {
        Ok(answer) => answer.map_err(failed),
        Err(_) => Err(Failure::run("the thread that waits for signals has ended")),
    }
}

/// Waits for Ctrl-C or, where the system has it, SIGTERM; both are noticed from the first poll on.
pub(crate) async fn interrupted() -> std::io::Result<()> {
    #[cfg(unix)]
    {
        let mut terminate = signal::unix::signal(signal::unix::SignalKind::terminate())?;
        tokio::select! {
            ended = signal::ctrl_c() => ended,
            _ = terminate.recv() => Ok(()),
        }
    }
    #[cfg(not(unix))]
    signal::ctrl_c().await
}

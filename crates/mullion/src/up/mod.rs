//! `mullion up`: a whole cluster in this process until Ctrl-C.
//!
//! [`plan`] turns flags into a ready [`plan::Plan`] and refuses wrong input before anything starts; [`cluster`] starts and stops the
//! parts; [`banner`] says what is there.

mod banner;
pub(crate) mod cluster;
mod images;
mod karpenter;
mod logs;
mod metrics;
pub(crate) mod plan;
pub(crate) mod published;
pub(crate) mod scheduler_config;
mod setup;
mod story;
mod windows_addresses;

use tokio::signal;

use crate::{cli::UpArgs, failure::Failure, out};

pub(crate) use self::banner::quoted;
use self::{cluster::Cluster, plan::Plan};

/// Runs a cluster until it is interrupted; a second interrupt ends the process at once.
pub(crate) async fn run(args: UpArgs) -> Result<(), Failure> {
    let plan = Plan::from_args(args)?;
    let ignored = plan.spec.ignored.join(", ");
    if !ignored.is_empty() {
        out::note(&format!(
            "accepted, without effect in a simulation: {ignored}"
        ));
    }
    let cluster = Cluster::start(plan).await?;
    out::line(&banner::text(&cluster, out::colours()));
    interrupts().await?;
    out::note("stopping; Ctrl-C again ends it at once");
    cluster.stop().await;
    Ok(())
}

/// Resolves at the first interrupt; the second ends the process. Signals are waited for on a thread of their own, so that they are heard
/// whatever the cluster's tasks are doing.
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
        // Whoever waited may be gone: the process is ending then.
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

/// Waits for Ctrl-C or, where the system has it, SIGTERM.
async fn interrupted() -> std::io::Result<()> {
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

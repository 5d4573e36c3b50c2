//! `mullion up`: a whole cluster in this process until Ctrl-C.
//!
//! [`plan`] turns flags into a ready [`plan::Plan`] and refuses wrong input before anything starts; [`cluster`] starts and stops the
//! parts; [`banner`] says what is there.

mod banner;
pub(crate) mod cluster;
mod images;
mod karpenter;
mod logs;
pub(crate) mod plan;
mod setup;
mod windows_addresses;

use tokio::signal;

use crate::{cli::UpArgs, failure::Failure, out};

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
    interrupted().await?;
    tokio::spawn(async {
        if interrupted().await.is_ok() {
            std::process::exit(130);
        }
    });
    cluster.stop().await;
    Ok(())
}

/// Waits for Ctrl-C or, where the system has it, SIGTERM.
async fn interrupted() -> Result<(), Failure> {
    let failed = |error| Failure::run(format!("signals cannot be waited for: {error}"));
    #[cfg(unix)]
    {
        let mut terminate =
            signal::unix::signal(signal::unix::SignalKind::terminate()).map_err(failed)?;
        tokio::select! {
            ended = signal::ctrl_c() => ended.map_err(failed),
            _ = terminate.recv() => Ok(()),
        }
    }
    #[cfg(not(unix))]
    signal::ctrl_c().await.map_err(failed)
}

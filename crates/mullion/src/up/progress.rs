//! The output of `mullion up` about its nodes while it runs, on stderr: a line for each that is launched, ready or removed, and on a
//! terminal a last line with the progress of booting nodes.
//!
//! It only observes; no part of the cluster depends on it. A thread of its own writes, so a stopped terminal does not stop the cluster.

use std::{
    io::{self, IsTerminal, Write},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use mullion_cloud::sim::SimulatedEc2;
use mullion_controllers::{Change, Informer};
use tokio::{
    runtime::Handle,
    sync::{Notify, oneshot},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::nodes::{Machine, Watch, is_ready, machines};
use crate::out;

/// The longest time between two looks while the shown text changes by itself.
const TICK: Duration = Duration::from_secs(1);
/// The shortest time between two looks, so that simultaneous changes are printed together.
const PAUSE: Duration = Duration::from_millis(200);
/// The time that the last line may take.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// The nodes that the user has seen, and the time since which they are observed.
pub(crate) struct ShownNodes {
    began: Instant,
    watch: Watch,
}

impl ShownNodes {
    /// Starts with the nodes that the user is shown now.
    pub(crate) fn now(shown: Vec<Machine>) -> ShownNodes {
        ShownNodes {
            began: Instant::now(),
            watch: Watch::new(shown),
        }
    }
}

/// Prints changes of nodes until it is ended or dropped.
pub(crate) struct Progress {
    stop: DropGuard,
    ended: oneshot::Receiver<ShownNodes>,
}

impl Progress {
    /// Starts to print everything that is not in `seen`. Returns `None` if no thread can be started; the cluster runs anyway.
    pub(crate) fn start(
        ec2: &SimulatedEc2,
        nodes: &Informer<Node>,
        seen: ShownNodes,
    ) -> Option<Progress> {
        let changed = Arc::new(Notify::new());
        nodes.on_change({
            let changed = Arc::clone(&changed);
            move |change| {
                if is_reportable(change) {
                    changed.notify_one();
                }
            }
        });
        let stop = CancellationToken::new();
        let (end, ended) = oneshot::channel();
        let printer = ProgressPrinter {
            ec2: ec2.clone(),
            nodes: nodes.clone(),
            changed,
            seen,
            shown: false,
        };
        let (runtime, stopped) = (Handle::current(), stop.clone());
        let thread = std::thread::Builder::new()
            .name("progress".into())
            .spawn(move || {
                let seen = runtime.block_on(printer.run(stopped));
                // The receiver may be gone, because the caller need not wait.
                let _ = end.send(seen);
            });
        match thread {
            Ok(_) => Some(Progress {
                stop: stop.drop_guard(),
                ended,
            }),
            Err(error) => {
                tracing::warn!(%error, "nothing is said of nodes");
                None
            }
        }
    }

    /// Prints the remaining changes, stops, and removes the line with the progress. Returns what has been printed, from which another
    /// display can continue; `None` if the terminal accepts no more text.
    pub(crate) async fn end(self) -> Option<ShownNodes> {
        drop(self.stop);
        timeout(END_PATIENCE, self.ended).await.ok()?.ok()
    }
}

/// Returns whether a node was added, removed or changed its readiness, and not only sent a heartbeat.
fn is_reportable(change: &Change<'_, Node>) -> bool {
    match change {
        Change::Added(_) | Change::Deleted(_) => true,
        Change::Updated { old, new } => is_ready(old) != is_ready(new),
    }
}

struct ProgressPrinter {
    ec2: SimulatedEc2,
    nodes: Informer<Node>,
    changed: Arc<Notify>,
    seen: ShownNodes,
    /// Whether a line with the progress is on the terminal.
    shown: bool,
}

impl ProgressPrinter {
    async fn run(mut self, stopped: CancellationToken) -> ShownNodes {
        let mut instances = self.ec2.changed();
        loop {
            let (lines, progress) = self.look();
            // Only the seconds in the progress line change by themselves, and only a terminal shows it.
            let ticks = progress.is_some() && io::stderr().is_terminal();
            self.print(&lines, progress.filter(|_| ticks));
            let next = async {
                sleep(PAUSE).await;
                tokio::select! {
                    () = self.changed.notified() => {}
                    // An error would mean that the cloud is gone, but it lives as long as this task.
                    _ = instances.changed() => {}
                    () = sleep(TICK), if ticks => {}
                }
            };
            if stopped.run_until_cancelled(next).await.is_none() {
                break;
            }
        }
        // Changes since the last look are printed too.
        let (lines, _) = self.look();
        self.print(&lines, None);
        self.seen
    }

    /// Returns a line for every change of nodes, and the progress of booting ones.
    fn look(&mut self) -> (Vec<String>, Option<String>) {
        let now = self.seen.began.elapsed();
        let watch = &mut self.seen.watch;
        let lines = watch.look(machines(&self.ec2, &self.nodes), now);
        (lines, watch.progress(now))
    }

    /// Writes lines above that of the progress. Errors are ignored, because a closed stderr wants no output.
    fn print(&mut self, lines: &[String], progress: Option<String>) {
        /// Moves to the beginning of the line and erases it.
        const ERASE: &str = "\r\x1b[2K";
        let mut stderr = io::stderr().lock();
        let mut text = String::new();
        if self.shown {
            text += ERASE;
        }
        for line in lines {
            text += &if stderr.is_terminal() {
                format!("{line}\n")
            } else {
                // In a log, each line needs the time.
                format!("{:.0} {line}\n", Timestamp::now())
            };
        }
        self.shown = progress.is_some();
        if let Some(progress) = progress {
            // The cursor goes back to the beginning of the line, so that the next output starts there.
            text += &fitting(&progress, out::stderr_width());
            text += "\r";
        }
        if !text.is_empty() {
            let _ = stderr
                .write_all(text.as_bytes())
                .and_then(|()| stderr.flush());
        }
    }
}

/// Returns as much of a text as fits into a line of the terminal, with an ellipsis if it was cut.
fn fitting(text: &str, width: Option<usize>) -> String {
    let most = width.unwrap_or(80).saturating_sub(1);
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let shown: String = text.chars().take(most.saturating_sub(1)).collect();
    format!("{}…", shown.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_never_takes_a_second_line() {
        assert_eq!(fitting("2 of 3 nodes ready", Some(10)), "2 of 3 n…");
        assert_eq!(fitting("2 of 3 nodes ready", Some(8)), "2 of 3…");
        assert_eq!(fitting("2 of 3", None), "2 of 3");
    }
}

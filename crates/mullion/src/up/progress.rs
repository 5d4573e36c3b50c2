//! What `mullion up` says of its nodes while it runs, on stderr: a line for each that is bought, ready or removed, and on a terminal a line
//! below them that says how far nodes have come that boot.
//!
//! It only watches; nothing of the cluster depends on it. A thread of its own writes, so a terminal that is stopped stops nothing else.

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

/// The time between two looks at most while something is shown that changes by itself.
const TICK: Duration = Duration::from_secs(1);
/// The time between two looks at least: what happens together is said together.
const PAUSE: Duration = Duration::from_millis(200);
/// How long the last line may take.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// What the user knows of the nodes, and since when they are watched.
pub(crate) struct Seen {
    began: Instant,
    watch: Watch,
}

impl Seen {
    /// Begins with the nodes that the user is shown now.
    pub(crate) fn now(shown: Vec<Machine>) -> Seen {
        Seen {
            began: Instant::now(),
            watch: Watch::new(shown),
        }
    }
}

/// Prints what becomes of nodes until this is ended or dropped.
pub(crate) struct Progress {
    stop: DropGuard,
    ended: oneshot::Receiver<Seen>,
}

impl Progress {
    /// Begins to print everything that is not `seen` yet. None if no thread can be had for it: the cluster runs all the same.
    pub(crate) fn start(
        ec2: &SimulatedEc2,
        nodes: &Informer<Node>,
        seen: Seen,
    ) -> Option<Progress> {
        let changed = Arc::new(Notify::new());
        nodes.on_change({
            let changed = Arc::clone(&changed);
            move |change| {
                if is_news(change) {
                    changed.notify_one();
                }
            }
        });
        let stop = CancellationToken::new();
        let (end, ended) = oneshot::channel();
        let teller = Teller {
            ec2: ec2.clone(),
            nodes: nodes.clone(),
            changed,
            seen,
            shown: false,
        };
        let (runtime, stopped) = (Handle::current(), stop.clone());
        let told = std::thread::Builder::new()
            .name("progress".into())
            .spawn(move || {
                let seen = runtime.block_on(teller.tell(stopped));
                // Nobody may wait any more.
                let _ = end.send(seen);
            });
        match told {
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

    /// Says what is still to be said, stops, and takes the line away that is still shown. Returns what has been said, from which another
    /// one can go on; none if the terminal takes no more text.
    pub(crate) async fn end(self) -> Option<Seen> {
        drop(self.stop);
        timeout(END_PATIENCE, self.ended).await.ok()?.ok()
    }
}

/// Whether a node came, went or changed its readiness; a heartbeat is none.
fn is_news(change: &Change<'_, Node>) -> bool {
    match change {
        Change::Added(_) | Change::Deleted(_) => true,
        Change::Updated { old, new } => is_ready(old) != is_ready(new),
    }
}

struct Teller {
    ec2: SimulatedEc2,
    nodes: Informer<Node>,
    changed: Arc<Notify>,
    seen: Seen,
    /// Whether a line of progress is on the terminal.
    shown: bool,
}

impl Teller {
    async fn tell(mut self, stopped: CancellationToken) -> Seen {
        let mut instances = self.ec2.changed();
        loop {
            let (lines, progress) = self.look();
            let ticks = progress.is_some() && io::stderr().is_terminal();
            self.print(&lines, progress.filter(|_| ticks));
            let next = async {
                sleep(PAUSE).await;
                tokio::select! {
                    () = self.changed.notified() => {}
                    // The cloud lives as long as this.
                    _ = instances.changed() => {}
                    () = sleep(TICK), if ticks => {}
                }
            };
            if stopped.run_until_cancelled(next).await.is_none() {
                break;
            }
        }
        // What became of nodes since the last look is said, too.
        let (lines, _) = self.look();
        self.print(&lines, None);
        self.seen
    }

    /// Returns a line for everything that has become of nodes, and how far those have come that boot.
    fn look(&mut self) -> (Vec<String>, Option<String>) {
        let now = self.seen.began.elapsed();
        let watch = &mut self.seen.watch;
        let lines = watch.look(machines(&self.ec2, &self.nodes), now);
        (lines, watch.progress(now))
    }

    /// Writes lines above that of the progress. Whoever has closed stderr wants none.
    fn print(&mut self, lines: &[String], progress: Option<String>) {
        /// Back to the begin of the line, which is emptied.
        const ERASE: &str = "\r\x1b[2K";
        let mut stderr = io::stderr().lock();
        let mut text = String::new();
        if self.shown {
            text += ERASE;
        }
        for line in lines {
            text += &match stderr.is_terminal() {
                true => format!("{line}\n"),
                // In a log it counts when it was.
                false => format!("{:.0} {line}\n", Timestamp::now()),
            };
        }
        self.shown = progress.is_some();
        if let Some(progress) = progress {
            // What others write next begins at the begin of the line, too.
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

/// Returns as much of a text as fits into a line of the terminal, with an ellipsis where that is not all.
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

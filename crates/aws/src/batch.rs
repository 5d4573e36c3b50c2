//! Combines calls about single objects into common calls (AWS provider: `pkg/batcher`).
//!
//! Invariant: every caller gets the answer to its own question, or none if there were fewer answers than questions.

use std::{fmt, sync::Arc, time::Duration};

use mullion_cloud::BoxFuture;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout_at},
};

/// The conditions under which a batch is complete.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The time without a new question.
    pub idle: Duration,
    /// The time since the first question.
    pub longest: Duration,
    /// The number of questions.
    pub most: usize,
}

/// The window of DescribeInstances and TerminateInstances.
pub const OF_INSTANCES: Window = Window {
    idle: Duration::from_millis(100),
    longest: Duration::from_secs(1),
    most: 500,
};

/// The input of a call, and the channel for its answer.
type PendingCall<I, O> = (I, oneshot::Sender<O>);

/// Collects questions and answers them together.
pub struct Batcher<I, O> {
    sender: mpsc::UnboundedSender<PendingCall<I, O>>,
}

impl<I, O> fmt::Debug for Batcher<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Batcher")
    }
}

impl<I: Send + 'static, O: Send + 'static> Batcher<I, O> {
    /// Starts a task that collects questions, and that ends with the batcher. `answer` returns an answer to each question, in the same
    /// order.
    pub fn start(
        window: Window,
        answer: impl Fn(Vec<I>) -> BoxFuture<'static, Vec<O>> + Send + Sync + 'static,
    ) -> Self {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let answer = Arc::new(answer);
        tokio::spawn(async move {
            while let Some(first) = receiver.recv().await {
                let batch = gather(window, first, &mut receiver).await;
                let answer = Arc::clone(&answer);
                // The next batch does not wait for the answers to this one.
                tokio::spawn(async move {
                    let (asked, waiting): (Vec<I>, Vec<oneshot::Sender<O>>) =
                        batch.into_iter().unzip();
                    for (one, waiting) in answer(asked).await.into_iter().zip(waiting) {
                        // Whoever asked may have given up.
                        let _ = waiting.send(one);
                    }
                });
            }
        });
        Self { sender }
    }

    /// Asks a question, and waits for the answer. Returns `None` if there is none.
    pub async fn ask(&self, input: I) -> Option<O> {
        let (sender, receiver) = oneshot::channel();
        self.sender.send((input, sender)).ok()?;
        receiver.await.ok()
    }
}

async fn gather<T>(window: Window, first: T, receiver: &mut mpsc::UnboundedReceiver<T>) -> Vec<T> {
    let last = Instant::now() + window.longest;
    let mut batch = vec![first];
    while batch.len() < window.most {
        // A question that comes alone waits only for `idle`; a steady stream of questions still ends the
        // batch after `longest`.
        let until = last.min(Instant::now() + window.idle);
        match timeout_at(until, receiver.recv()).await {
            Ok(Some(next)) => batch.push(next),
            Ok(None) | Err(_) => break,
        }
    }
    batch
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::time::sleep;

    use super::*;

    type Sizes = Arc<Mutex<Vec<usize>>>;

    fn doubling(window: Window) -> (Batcher<u32, u32>, Sizes) {
        let sizes = Sizes::default();
        let seen = Arc::clone(&sizes);
        let batcher = Batcher::start(window, move |asked: Vec<u32>| {
            seen.lock().expect("not poisoned").push(asked.len());
            Box::pin(async move { asked.into_iter().map(|n| n * 2).collect() })
        });
        (batcher, sizes)
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_asked_together_is_answered_together() {
        let (batcher, sizes) = doubling(OF_INSTANCES);
        let (a, b) = tokio::join!(batcher.ask(1), batcher.ask(2));
        assert_eq!((a, b), (Some(2), Some(4)));
        assert_eq!(batcher.ask(3).await, Some(6));
        assert_eq!(*sizes.lock().expect("not poisoned"), [2, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_ends_when_it_is_full_or_has_waited_long_enough() {
        let window = Window {
            most: 2,
            ..OF_INSTANCES
        };
        let (batcher, sizes) = doubling(window);
        let _ = tokio::join!(batcher.ask(1), batcher.ask(2), batcher.ask(3));
        assert_eq!(*sizes.lock().expect("not poisoned"), [2, 1]);
        let (batcher, sizes) = doubling(OF_INSTANCES);
        let late = async |n: u32| {
            sleep(Duration::from_millis(u64::from(n) * 90)).await;
            batcher.ask(n).await
        };
        let _ = futures_of(&late).await;
        // 90 ms apart, nothing is idle for 100 ms; after a second the first batch is over: 0, 90, ..., 990.
        assert_eq!(*sizes.lock().expect("not poisoned"), [12, 3]);
    }

    async fn futures_of<F: Future<Output = Option<u32>>>(late: &impl Fn(u32) -> F) {
        tokio::join!(
            late(0),
            late(1),
            late(2),
            late(3),
            late(4),
            late(5),
            late(6),
            late(7),
            late(8),
            late(9),
            late(10),
            late(11),
            late(12),
            late(13),
            late(14)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn who_gets_no_answer_is_told_so() {
        let batcher: Batcher<u32, u32> =
            Batcher::start(OF_INSTANCES, |_| Box::pin(async { vec![7] }));
        let (a, b) = tokio::join!(batcher.ask(1), batcher.ask(2));
        assert_eq!((a, b), (Some(7), None));
    }
}

//! The queue of messages about instances, with the semantics of SQS.
//!
//! Invariant: a message stays until it is deleted or five minutes old (the retention that Karpenter's guides set); when there are too many,
//! the oldest are dropped. A received message is hidden from other receivers for [`HIDDEN`].

use std::{collections::VecDeque, time::Duration};

use tokio::{sync::watch, time::Instant};

use crate::{Clock, InstanceId, Message, MessageKind};

/// The number of messages that one call returns.
pub(super) const AT_ONCE: usize = 10;
/// The time in which a receiver must delete a message that it got.
const HIDDEN: Duration = Duration::from_secs(20);
/// The time for which a message is kept.
const KEPT: Duration = Duration::from_secs(300);
/// The number of messages that are kept.
const MOST: usize = 10_000;

pub(super) struct Queue {
    clock: Clock,
    messages: VecDeque<QueuedMessage>,
    last: u64,
    sent: watch::Sender<u64>,
}

struct QueuedMessage {
    message: Message,
    sent: Instant,
    hidden_until: Instant,
}

impl Queue {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            clock,
            messages: VecDeque::new(),
            last: 0,
            sent: watch::Sender::new(0),
        }
    }

    /// Returns a counter that increases whenever a message is sent.
    pub(super) fn sent(&self) -> watch::Receiver<u64> {
        self.sent.subscribe()
    }

    pub(super) fn send(&mut self, kind: MessageKind, instance: &InstanceId) {
        let now = Instant::now();
        self.last += 1;
        let message = Message {
            receipt: self.last,
            kind,
            instance: instance.clone(),
            sent_at: self.clock.now(),
        };
        self.messages.push_back(QueuedMessage {
            message,
            sent: now,
            hidden_until: now,
        });
        if self.messages.len() > MOST {
            // Nobody may be receiving, and the queue must not grow without end.
            self.messages.pop_front();
        }
        self.sent.send_replace(self.last);
    }

    /// Returns up to `most` messages, and hides them for a while.
    pub(super) fn receive(&mut self, most: usize) -> Vec<Message> {
        let now = Instant::now();
        self.messages
            .retain(|kept| now.duration_since(kept.sent) < KEPT);
        let visible = self.messages.iter_mut();
        let visible = visible.filter(|kept| kept.hidden_until <= now);
        visible
            .take(most)
            .map(|kept| {
                kept.hidden_until = now + HIDDEN;
                kept.message.clone()
            })
            .collect()
    }

    /// Returns the time at which the next hidden message becomes visible again.
    pub(super) fn next_visible(&self) -> Option<Instant> {
        self.messages.iter().map(|kept| kept.hidden_until).min()
    }

    pub(super) fn delete(&mut self, receipt: u64) {
        self.messages.retain(|kept| kept.message.receipt != receipt);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipts(queue: &mut Queue) -> Vec<u64> {
        let messages = queue.receive(AT_ONCE);
        messages.iter().map(|message| message.receipt).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_comes_again_until_it_is_deleted_or_too_old() {
        let mut queue = Queue::new(Clock::system());
        for id in ["i-1", "i-2"] {
            queue.send(MessageKind::InstanceStopped, &InstanceId(id.into()));
        }
        assert_eq!(receipts(&mut queue), [1, 2]);
        assert_eq!(receipts(&mut queue), [] as [u64; 0], "they are hidden");
        queue.delete(1);
        assert_eq!(queue.next_visible(), Some(Instant::now() + HIDDEN));
        tokio::time::sleep(HIDDEN).await;
        assert_eq!(receipts(&mut queue), [2]);
        tokio::time::sleep(KEPT).await;
        assert_eq!(receipts(&mut queue), [] as [u64; 0], "it is too old");
        assert_eq!(queue.next_visible(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_that_nobody_reads_forgets_its_oldest_messages() {
        let mut queue = Queue::new(Clock::system());
        for _ in 0..MOST + 5 {
            queue.send(MessageKind::InstanceTerminated, &InstanceId("i-1".into()));
        }
        assert_eq!(queue.messages.len(), MOST);
        assert_eq!(receipts(&mut queue)[0], 6);
    }
}

//! The interruption queue: EventBridge events in SQS.
//!
//! One SQS message may be about several instances, and then becomes several messages. Invariant: it is deleted from the queue when all of
//! those are deleted, or at once if it needs no action.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
    time::Duration,
};

use aws_sdk_sqs::types::MessageSystemAttributeName;
use jiff::Timestamp;
use mullion_cloud::{CloudError, Message};
use tokio::time::{Instant, sleep};

use super::{Dated, Inner, errors::Failed, lock};
use crate::events;

/// The time for which a call waits for messages (SQS: at most 20 s), and for which a received one is hidden from other receivers.
const PATIENCE: Duration = Duration::from_secs(20);
/// The time for which the SQS message behind a message is remembered. By then it has been received again with another handle.
const HANDLES_FOR: Duration = Duration::from_secs(300);
const MOST: i32 = 10;

/// The state of the queue.
#[derive(Debug, Default)]
pub(super) struct Queue {
    url: Mutex<Option<String>>,
    received: Mutex<Received>,
}

/// The messages that were received and not deleted.
#[derive(Debug, Default)]
struct Received {
    next: u64,
    /// The handles by receipt.
    handles: BTreeMap<u64, Dated<String>>,
}

impl Received {
    fn add(&mut self, handle: &str) -> u64 {
        // Handlers may fail and never delete a message; SQS delivers it again with a new handle.
        self.handles.retain(|_, own| own.at.elapsed() < HANDLES_FOR);
        self.next += 1;
        let dated = Dated::now(handle.to_owned());
        self.handles.insert(self.next, dated);
        self.next
    }

    /// Removes a message. Returns the handle if no other message has the same one.
    fn remove(&mut self, receipt: u64) -> Option<String> {
        let handle = self.handles.remove(&receipt)?.value;
        let others: BTreeSet<&String> = self.handles.values().map(|own| &own.value).collect();
        let is_last = !others.contains(&handle);
        is_last.then_some(handle)
    }
}

impl Inner {
    pub(super) async fn receive_messages(&self) -> Result<Vec<Message>, CloudError> {
        let Some(name) = &self.settings.interruption_queue else {
            sleep(PATIENCE).await;
            return Ok(Vec::new());
        };
        let began = Instant::now();
        let url = self.queue_url(name).await?;
        let seconds = PATIENCE.as_secs() as i32;
        let call = self
            .sqs
            .receive_message()
            .queue_url(url)
            .max_number_of_messages(MOST)
            .visibility_timeout(seconds)
            .wait_time_seconds(seconds)
            .message_system_attribute_names(MessageSystemAttributeName::SentTimestamp);
        let answer = call
            .send()
            .await
            .map_err(Failed::of)
            .inspect_err(|failed| {
                // The queue may have been created again, with another URL.
                if failed.is_not_found() {
                    *lock(&self.queue.url) = None;
                }
            })?;
        let mut messages = Vec::new();
        for own in answer.messages() {
            let Some(handle) = own.receipt_handle() else {
                continue;
            };
            let Some(event) = own.body().and_then(events::read) else {
                // Otherwise it would be delivered again and again until the queue drops it.
                self.delete_by_handle(handle).await?;
                continue;
            };
            let sent = own
                .attributes()
                .and_then(|all| all.get(&MessageSystemAttributeName::SentTimestamp))
                .and_then(|text| text.parse().ok())
                .and_then(|millis| Timestamp::from_millisecond(millis).ok());
            for instance in event.instances {
                messages.push(Message {
                    receipt: lock(&self.queue.received).add(handle),
                    kind: event.kind,
                    instance,
                    sent_at: sent.or(event.at).unwrap_or_else(Timestamp::now),
                });
            }
        }
        tracing::trace!(
            "{} messages after {} ms",
            messages.len(),
            began.elapsed().as_millis()
        );
        Ok(messages)
    }

    pub(super) async fn delete_message(&self, message: &Message) -> Result<(), CloudError> {
        let handle = lock(&self.queue.received).remove(message.receipt);
        match handle {
            Some(handle) => self.delete_by_handle(&handle).await,
            None => Ok(()),
        }
    }

    async fn delete_by_handle(&self, handle: &str) -> Result<(), CloudError> {
        let Some(name) = &self.settings.interruption_queue else {
            return Ok(());
        };
        let url = self.queue_url(name).await?;
        let call = self.sqs.delete_message().queue_url(url);
        call.receipt_handle(handle)
            .send()
            .await
            .map_err(Failed::of)?;
        Ok(())
    }

    async fn queue_url(&self, name: &str) -> Result<String, Failed> {
        if let Some(url) = &*lock(&self.queue.url) {
            return Ok(url.clone());
        }
        let call = self.sqs.get_queue_url().queue_name(name);
        let answer = call.send().await.map_err(Failed::of)?;
        let url = answer.queue_url().unwrap_or_default().to_owned();
        *lock(&self.queue.url) = Some(url.clone());
        Ok(url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_message_about_several_instances_is_deleted_with_the_last_of_them() {
        let mut received = Received::default();
        let (a, b, c) = (received.add("x"), received.add("x"), received.add("y"));
        assert_eq!(received.remove(a), None);
        assert_eq!(received.remove(c).as_deref(), Some("y"));
        assert_eq!(received.remove(b).as_deref(), Some("x"));
        assert_eq!(received.remove(b), None);
        received.add("z");
        tokio::time::advance(HANDLES_FOR).await;
        received.add("w");
        assert_eq!(received.handles.len(), 1);
    }
}

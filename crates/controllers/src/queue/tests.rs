use std::time::Duration;

use futures::poll;
use tokio::time::Instant;

use super::*;

const MS: Duration = Duration::from_millis(1);

async fn take(queue: &Queue<&'static str>) -> &'static str {
    *queue.next().await.expect("the queue is open").key()
}

#[tokio::test(start_paused = true)]
async fn a_key_added_many_times_comes_out_once() {
    let queue = Queue::new("test");
    queue.add("a");
    queue.add("b");
    queue.add("a");
    assert_eq!(take(&queue).await, "a");
    assert_eq!(take(&queue).await, "b");
    assert!(queue.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_key_added_while_worked_on_waits_for_its_worker() {
    let queue = Queue::new("test");
    queue.add("a");
    let work = queue.next().await.expect("the queue is open");
    queue.add("a");
    let mut next = Box::pin(queue.next());
    assert!(poll!(&mut next).is_pending());
    drop(work);
    assert_eq!(next.await.map(|work| *work.key()), Some("a"));
}

#[tokio::test(start_paused = true)]
async fn delayed_keys_come_out_when_due_and_the_earliest_delay_wins() {
    let queue = Queue::new("test");
    let start = Instant::now();
    queue.add_after("late", 50 * MS);
    queue.add_after("soon", 10 * MS);
    queue.add_after("late", 20 * MS);
    queue.add_after("soon", 90 * MS);
    assert_eq!((take(&queue).await, start.elapsed()), ("soon", 10 * MS));
    assert_eq!((take(&queue).await, start.elapsed()), ("late", 20 * MS));
    tokio::time::advance(100 * MS).await;
    assert!(
        poll!(Box::pin(queue.next())).is_pending(),
        "stale deadlines do not fire"
    );
}

#[tokio::test(start_paused = true)]
async fn an_earlier_deadline_wakes_a_worker_that_sleeps_until_a_later_one() {
    let queue = Queue::new("test");
    let start = Instant::now();
    queue.add_after("late", 1000 * MS);
    let waiting = tokio::spawn({
        let queue = queue.clone();
        async move { take(&queue).await }
    });
    tokio::task::yield_now().await;
    queue.add_after("soon", 10 * MS);
    assert_eq!(waiting.await.expect("no panic"), "soon");
    assert_eq!(start.elapsed(), 10 * MS);
}

#[tokio::test(start_paused = true)]
async fn failures_double_the_delay_until_forgotten() {
    let queue = Queue::new("test");
    for expected in [5, 10, 20, 40] {
        let start = Instant::now();
        queue.add_rate_limited("a");
        take(&queue).await;
        assert_eq!(start.elapsed(), expected * MS);
    }
    assert_eq!(queue.failures(&"a"), 4);
    queue.forget(&"a");
    let start = Instant::now();
    queue.add_rate_limited("a");
    take(&queue).await;
    assert_eq!(start.elapsed(), 5 * MS);
}

#[test]
fn backoff_never_exceeds_its_limit() {
    let backoff = Backoff::default();
    assert_eq!(backoff.delay(17), Duration::from_millis(5 << 17));
    assert_eq!(backoff.delay(18), Duration::from_secs(1000));
    assert_eq!(backoff.delay(u32::MAX), Duration::from_secs(1000));
}

#[tokio::test(start_paused = true)]
async fn every_idle_worker_gets_a_key_of_a_burst() {
    let queue = Queue::new("test");
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.next().await })
        })
        .collect();
    tokio::task::yield_now().await;
    for key in ["a", "b", "c"] {
        queue.add(key);
    }
    let mut held = Vec::new();
    for worker in workers {
        held.push(worker.await.expect("no panic").expect("the queue is open"));
    }
    let mut keys: Vec<_> = held.iter().map(|work| *work.key()).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["a", "b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn closing_ends_all_workers() {
    let queue: Queue<&str> = Queue::new("test");
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.next().await.is_none() })
        })
        .collect();
    tokio::task::yield_now().await;
    queue.close();
    for worker in workers {
        assert!(worker.await.expect("no panic"));
    }
    assert!(queue.next().await.is_none());
}

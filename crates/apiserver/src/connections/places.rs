//! Limits the number of connections, and chooses the one to close when there are too many.
//!
//! Connections in the TLS handshake, of users and of administrators (by their certificate) are counted separately, so that administrators
//! can connect whatever others have open. If a kind has reached its limit, the connection that has been idle longest is closed; if all
//! are in use, the new one is refused.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::Notify;

use super::activity::Activity;
use crate::limits::{ConnectionLimits, Limits};

/// The kind of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The TLS handshake is not finished.
    Handshake,
    /// The client has no certificate of `system:masters`.
    User,
    Administrator,
}

/// The connections of a listener.
pub(crate) struct Places {
    limits: ConnectionLimits,
    /// How long a request may take.
    request: Duration,
    taken: Mutex<OccupiedPlaces>,
}

#[derive(Default)]
struct OccupiedPlaces {
    /// The number of the next connection.
    next: u64,
    by_kind: [BTreeMap<u64, Arc<Holder>>; 3],
}

/// The part of a connection that other connections see.
struct Holder {
    activity: Activity,
    /// Tells the connection to close.
    end: Notify,
}

/// The place of a connection among those of its kind, until it is dropped.
pub(crate) struct Place {
    places: Arc<Places>,
    number: u64,
    kind: Kind,
    holder: Arc<Holder>,
}

impl Places {
    pub(crate) fn new(limits: &Limits) -> Arc<Self> {
        Arc::new(Places {
            limits: limits.connections.clone(),
            request: limits.request,
            taken: Mutex::default(),
        })
    }

    /// Gives a place to a newly accepted connection. If too many handshakes are pending, the oldest is closed.
    pub(crate) fn begin(self: &Arc<Self>) -> Place {
        let mut taken = self.taken();
        let number = taken.next;
        taken.next += 1;
        let handshakes = &mut taken.by_kind[Kind::Handshake as usize];
        if handshakes.len() >= self.limits.handshakes
            // The oldest and not the new one: clients that never finish their handshake must not keep others out.
            && let Some((_, oldest)) = handshakes.pop_first()
        {
            oldest.end.notify_one();
        }
        let holder = Arc::new(Holder::new(self.request));
        handshakes.insert(number, holder.clone());
        Place {
            places: self.clone(),
            number,
            kind: Kind::Handshake,
            holder,
        }
    }

    fn most(&self, kind: Kind) -> usize {
        match kind {
            Kind::Handshake => self.limits.handshakes,
            Kind::User => self.limits.users,
            Kind::Administrator => self.limits.administrators,
        }
    }

    fn taken(&self) -> MutexGuard<'_, OccupiedPlaces> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Holder {
    fn new(request: Duration) -> Self {
        Holder {
            activity: Activity::new(request),
            end: Notify::new(),
        }
    }
}

impl Place {
    /// Moves the connection to its kind once the handshake has shown the client. Returns false if all connections of that kind are in
    /// use.
    pub(crate) fn settle(&mut self, kind: Kind) -> bool {
        let most = self.places.most(kind);
        let mut taken = self.places.taken();
        // Removed first, so that a refused connection holds no place of either kind.
        taken.by_kind[self.kind as usize].remove(&self.number);
        self.kind = kind;
        let alike = &mut taken.by_kind[kind as usize];
        if alike.len() >= most {
            let quiet = alike
                .iter()
                .filter_map(|(number, holder)| Some((holder.activity.quiet_since()?, *number)));
            let Some((_, quietest)) = quiet.min() else {
                return false;
            };
            if let Some(holder) = alike.remove(&quietest) {
                holder.end.notify_one();
            }
        }
        // A new holder, because the time limits after the handshake start now.
        self.holder = Arc::new(Holder::new(self.places.request));
        alike.insert(self.number, self.holder.clone());
        true
    }

    pub(super) fn activity(&self) -> &Activity {
        &self.holder.activity
    }

    /// Waits until the connection must close: it has been idle for too long, or another connection needs its place.
    pub(crate) async fn over(&self) {
        let limits = &self.places.limits;
        let first = match self.kind {
            Kind::Handshake => limits.handshake,
            Kind::User | Kind::Administrator => limits.first_request,
        };
        tokio::select! {
            () = self.holder.end.notified() => {}
            () = self.holder.activity.until_over(first, limits.idle) => {}
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.taken().by_kind[self.kind as usize].remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections::ActivityGuard;

    fn places() -> Arc<Places> {
        Places::new(&Limits {
            connections: ConnectionLimits {
                handshakes: 2,
                users: 2,
                administrators: 1,
                ..ConnectionLimits::default()
            },
            ..Limits::default()
        })
    }

    fn settled(places: &Arc<Places>, kind: Kind) -> Option<Arc<Place>> {
        let mut place = places.begin();
        place.settle(kind).then(|| Arc::new(place))
    }

    async fn is_over(place: &Place) -> bool {
        tokio::time::timeout(Duration::ZERO, place.over())
            .await
            .is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_handshake_makes_room() {
        let places = places();
        let (first, second) = (places.begin(), places.begin());
        assert!(!is_over(&first).await && !is_over(&second).await);
        let third = places.begin();
        assert!(is_over(&first).await && !is_over(&second).await);
        drop(third);
        let _fourth = places.begin();
        assert!(!is_over(&second).await, "there was room");
    }

    #[tokio::test(start_paused = true)]
    async fn the_connection_without_a_request_for_the_longest_makes_room_and_no_other() {
        let places = places();
        let first = settled(&places, Kind::User).expect("there is room");
        let second = settled(&places, Kind::User).expect("there is room");
        tokio::time::advance(Duration::from_secs(1)).await;
        drop(ActivityGuard::new(&first));
        let third = settled(&places, Kind::User).expect("the second makes room");
        assert!(is_over(&second).await && !is_over(&first).await);
        let _in_use = (ActivityGuard::new(&first), ActivityGuard::new(&third));
        assert!(settled(&places, Kind::User).is_none());
        assert!(!is_over(&first).await && !is_over(&third).await);
        assert!(settled(&places, Kind::Administrator).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_does_not_speak_ends() {
        let (places, limits) = (places(), ConnectionLimits::default());
        let lasts = async |place: &Place| {
            let began = tokio::time::Instant::now();
            place.over().await;
            began.elapsed()
        };
        assert_eq!(lasts(&places.begin()).await, limits.handshake);
        let silent = settled(&places, Kind::User).expect("there is room");
        assert_eq!(lasts(&silent).await, limits.first_request);
        let speaks = settled(&places, Kind::User).expect("there is room");
        let request = ActivityGuard::new(&speaks).goes_on();
        let answered = async {
            tokio::time::sleep(limits.idle * 3).await;
            drop(request);
        };
        let (lasted, ()) = tokio::join!(lasts(&speaks), answered);
        assert_eq!(lasted, limits.idle * 4);
        let deaf = settled(&places, Kind::User).expect("there is room");
        let _unread = ActivityGuard::new(&deaf);
        let lasted = lasts(&deaf).await;
        let request = Limits::default().request;
        assert!(lasted >= request + limits.idle && lasted <= request + limits.idle * 2);
    }
}

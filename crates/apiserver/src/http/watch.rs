//! Watches: synthetic events for existing objects, then the events of the store's log, as JSON lines or protobuf frames.
//!
//! A watcher sends the stored lines themselves where it can: whole objects in the stored version, without a selector or where the object
//! matches both before and after the change. Other events are serialized for each watcher. All pending events go out in one piece, and to
//! clients on the network at most every few milliseconds ([`GATHER`]): a lone event leaves at once, and a hundred watchers of a busy kind
//! do not need a system call for each event.

mod socket;

use std::{convert::Infallible, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use http::Response;
use mullion_kube_text::status::Status;
use mullion_schema::{Type, proto};
use mullion_store::{Cursor, Event, EventType, Expired, Object};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    call::Call,
    list::{self, ListOptions},
    negotiate::{Form, Media, Shape},
    piece::PieceBuilder,
    reply,
    selector::Selector,
    table,
};
use crate::{registry::Row, request::upgrade::is_websocket};

/// The least time between two pieces to a client on the network.
const GATHER: Duration = Duration::from_millis(5);
// kube-apiserver's cacher sends bookmarks as often (defaultBookmarkFrequency).
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// The last bookmark comes this long before the end of a watch.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);
/// A watch without `timeoutSeconds` ends after this many seconds, plus a random time of up to as much again.
const DEFAULT_TIMEOUT: u64 = 1800;
/// The longest `timeoutSeconds` that is honoured: ten years.
const LONGEST_S: u64 = 10 * 365 * 24 * 60 * 60;
const STATUS: &str = "apimachinery.pkg.apis.meta.v1.Status";

pub(crate) async fn watch(mut call: Call) -> Result<Response<Body>, Status> {
    let options = ListOptions::parse(&call.query, true)?;
    let mut selector = Selector::of(&call)?;
    if !call.name.is_empty() {
        // A watch of one name is a watch of the collection with a selector, so a selector for another name contradicts the path.
        if !selector.takes_any_field() && selector.name() != Some(call.name.as_str()) {
            return Err(Status::bad_request(
                "fieldSelector metadata.name doesn't match requested name",
            ));
        }
        selector.restrict_to_name(&call.name);
    }
    // Taken now, because the call moves into the stream below.
    let frames = call.form.media == Media::Protobuf;
    let revision = match options.resource_version.as_str() {
        "" => 0,
        text => list::parse_revision(text).map_err(|error| {
            Status::new(
                500,
                "",
                format!("resourceVersion: Invalid value: {text:?}: {error}"),
            )
        })?,
    };
    // A client that names no revision has listed nothing before, so it needs the state to which the events apply.
    let initial = options.send_initial_events.unwrap_or(revision == 0);
    // kube-apiserver sends initial events for a watch without a resourceVersion, or from 0, even if it did not ask for them.
    let ends_initial = initial && options.bookmarks;
    let include = match call.form.shape {
        Shape::Table(_) => table::Include::parse(&call.query)?,
        _ => table::Include::Metadata,
    };
    let timeout = match options.timeout_seconds {
        Some(seconds) => Duration::from_secs(seconds.min(LONGEST_S)),
        // Random, as in kube-apiserver's ListResource: watches that began together must not all reconnect together.
        None => Duration::from_secs_f64(DEFAULT_TIMEOUT as f64 * (1.0 + rand::random::<f64>())),
    };
    // An absolute time: the initial events of a large collection count towards the timeout.
    let ends = Instant::now() + timeout;
    // A client in this process has no connection to upgrade.
    let upgrade = call.upgrade.take();
    let upgrade = upgrade.filter(|_| is_websocket(&call.headers));
    let headers = upgrade.as_ref().map(|_| call.headers.clone());
    let media = call.form.media;
    let writer = LineWriter {
        call,
        selector,
        include,
        columns_sent: false,
    };
    let lines = follow(
        writer,
        Plan {
            initial,
            ends_initial,
            from: revision,
            bookmarks: options.bookmarks,
            ends,
            alone: upgrade.is_some(),
        },
    );
    if let (Some(upgrade), Some(headers)) = (upgrade, headers) {
        return Ok(socket::serve(&headers, upgrade, media, ends, lines));
    }
    let content_type = if frames {
        "application/vnd.kubernetes.protobuf;stream=watch"
    } else {
        Media::Json.content_type()
    };
    Ok(reply::respond(200, content_type, Body::from_stream(lines)))
}

/// Returns the time of the next bookmark: a fixed interval from now, or shortly before the end if that is sooner.
fn bookmark_time(now: Instant, ends: Instant) -> Instant {
    let regular = now + BOOKMARK_EVERY;
    match ends.checked_sub(BOOKMARK_BEFORE_END) {
        Some(last) if last > now => regular.min(last),
        _ => regular,
    }
}

/// Returns the line of an event, with its type first as kube-apiserver writes it: clients decode the object by it.
fn line(event: &str, object: &Value) -> Bytes {
    format!("{{\"type\":\"{event}\",\"object\":{object}}}\n").into()
}

/// The timing and content of a watch.
struct Plan {
    initial: bool,
    ends_initial: bool,
    from: u64,
    bookmarks: bool,
    ends: Instant,
    /// Whether each event goes out in a piece of its own (WebSocket messages).
    alone: bool,
}

impl Plan {
    /// Returns the time of the next bookmark, or of the end of the watch if that is sooner.
    fn due(&self, now: Instant) -> Instant {
        if self.bookmarks {
            bookmark_time(now, self.ends).min(self.ends)
        } else {
            self.ends
        }
    }
}

fn follow(
    mut writer: LineWriter,
    plan: Plan,
) -> impl futures::Stream<Item = Result<Bytes, Infallible>> {
    async_stream::stream! {
        let collection = writer.call.row.collection.clone();
        let mut from = plan.from;
        if plan.initial {
            // The initial state must be no older than the requested revision.
            if let Err(status) = list::wait_for(&writer.call, plan.from).await {
                yield Ok(writer.error(&status));
                return;
            }
            // The snapshot and the cursor share a revision, so no change is lost between the two or seen twice.
            let snapshot = collection.snapshot(writer.call.namespace.as_deref());
            from = snapshot.revision;
            let mut piece = PieceBuilder::new(plan.alone);
            for object in &snapshot.objects {
                if let Some(line) = writer.added(object)
                    && let Some(full) = piece.add(line)
                {
                    yield Ok(full);
                    // Yield to other tasks, because there may be many objects.
                    tokio::task::yield_now().await;
                }
            }
            if plan.ends_initial
                && let Some(full) = piece.add(writer.bookmark(from, true))
            {
                yield Ok(full);
            }
            if let Some(rest) = piece.take() {
                yield Ok(rest);
            }
        } else if plan.from == 0 {
            from = collection.revision();
        }
        // Fails if the revision has left the store's window; the client must list again.
        let mut cursor = match Cursor::new(collection, from) {
            Ok(cursor) => cursor,
            Err(expired) => {
                yield Ok(writer.expired(expired));
                return;
            }
        };
        // The timer is set once for many events: setting it anew for each piece would cost a busy watch too much.
        let due = tokio::time::sleep_until(plan.due(Instant::now()));
        tokio::pin!(due);
        let mut rests_until = None;
        loop {
            // The pause comes before the read, not after it: what happens meanwhile joins the same piece.
            let events = async {
                if let Some(then) = rests_until {
                    tokio::time::sleep_until(then).await;
                }
                cursor.next().await
            };
            tokio::select! {
                // Events first, so that a bookmark that is due does not delay them.
                biased;
                events = events => match events {
                    Ok(events) => {
                        let mut piece = PieceBuilder::new(plan.alone);
                        for event in &events {
                            if let Some(line) = writer.event(event)
                                && let Some(full) = piece.add(line)
                            {
                                yield Ok(full);
                            }
                        }
                        if let Some(rest) = piece.take() {
                            yield Ok(rest);
                        }
                        rests_until = writer.call.on_network.then(|| Instant::now() + GATHER);
                    }
                    Err(expired) => {
                        yield Ok(writer.expired(expired));
                        return;
                    }
                },
                () = &mut due => {
                    if due.deadline() >= plan.ends {
                        return;
                    }
                    // The revision that this watcher has read up to, which a quiet collection's own last change may be far behind.
                    let revision = cursor.progress();
                    yield Ok(writer.bookmark(revision, false));
                    due.as_mut().reset(plan.due(Instant::now()));
                }
            }
        }
    }
}

/// Serializes the events of one watcher.
struct LineWriter {
    call: Call,
    selector: Selector,
    include: table::Include,
    columns_sent: bool,
}

impl LineWriter {
    /// Returns the synthetic event for an existing object, if the selector matches it.
    fn added(&mut self, object: &Object) -> Option<Bytes> {
        self.selector.matches(&self.call.row, object).then(|| {
            if self.shares_lines() {
                object.line_as(EventType::Added)
            } else {
                self.made(EventType::Added, object)
            }
        })
    }

    /// Returns the line for a change, or `None` if this watcher must not see it. An object that starts or stops to match the selector
    /// appears as ADDED or DELETED.
    fn event(&mut self, event: &Event) -> Option<Bytes> {
        if self
            .call
            .namespace
            .as_deref()
            .is_some_and(|namespace| event.object.key().namespace() != Some(namespace))
        {
            return None;
        }
        let matches = |object: &Object| {
            self.selector.is_empty() || self.selector.matches(&self.call.row, object)
        };
        // As kube-apiserver's cacher does (convertToWatchEvent): a client's cache must drop an object that leaves its selector.
        let now = event.event_type != EventType::Deleted && matches(&event.object);
        let before = event
            .previous
            .as_deref()
            .filter(|previous| matches(previous));
        let seen_as = match (before, now) {
            (None, false) => return None,
            (None, true) => EventType::Added,
            (Some(_), true) => EventType::Modified,
            (Some(_), false) => EventType::Deleted,
        };
        let share = self.shares_lines();
        if seen_as == event.event_type {
            return Some(if share {
                event.object.line()
            } else {
                self.made(seen_as, &event.object)
            });
        }
        Some(match before {
            Some(before) if seen_as == EventType::Deleted => {
                // The client knows only the state that matched, so the event shows that state, at the revision of the change.
                let gone = before.deleted_at(event.revision());
                if share {
                    gone.line()
                } else {
                    self.made(seen_as, &gone)
                }
            }
            _ if share => event.object.line_as(seen_as),
            _ => self.made(seen_as, &event.object),
        })
    }

    fn shares_lines(&self) -> bool {
        self.call.form == Form::JSON && self.call.row.serves_stored_bytes()
    }

    fn made(&mut self, event: EventType, object: &Object) -> Bytes {
        let row = self.call.row.clone();
        let object = row.served(object);
        let shown = match self.call.form.shape {
            Shape::Whole => object,
            Shape::Metadata(version) | Shape::MetadataList(version) => {
                table::metadata_of(&row, &object, version)
            }
            Shape::Table(version) => {
                let rows = vec![table::row(
                    &row,
                    version,
                    &object,
                    self.call.server.now(),
                    self.include,
                )];
                let metadata = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
                let columns = self.columns(&row);
                table::table(version, metadata, columns, rows)
            }
        };
        self.frame(event.as_str(), self.call.schema(), &shown)
    }

    /// Returns the column definitions for the next table. kube-apiserver sends them with the first table alone; kubectl keeps them.
    fn columns(&mut self, row: &Row) -> Value {
        if std::mem::replace(&mut self.columns_sent, true) {
            Value::Null
        } else {
            table::definitions(row)
        }
    }

    fn bookmark(&mut self, revision: u64, ends_initial: bool) -> Bytes {
        let row = self.call.row.clone();
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if ends_initial {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = match self.call.form.shape {
            Shape::Whole => {
                json!({"kind": *row.resource.kind, "apiVersion": row.api_version(), "metadata": metadata})
            }
            Shape::Metadata(version) | Shape::MetadataList(version) => {
                json!({"kind": "PartialObjectMetadata", "apiVersion": version, "metadata": metadata})
            }
            Shape::Table(version) => {
                // kube-apiserver makes a table without rows of it, which loses the annotation.
                let metadata = json!({"resourceVersion": metadata["resourceVersion"]});
                let columns = self.columns(&row);
                table::table(version, metadata, columns, Vec::new())
            }
        };
        self.frame("BOOKMARK", self.call.schema(), &object)
    }

    /// Returns the error event for a watcher that is too slow: events it has not read have left the store's window.
    fn expired(&self, expired: Expired) -> Bytes {
        self.error(&Status::new(410, "Expired", expired.to_string()))
    }

    fn error(&self, status: &Status) -> Bytes {
        let status = status.to_json();
        match Type::builtin(STATUS) {
            Some(schema) => self.frame("ERROR", &schema, &status),
            None => line("ERROR", &status),
        }
    }

    /// Encodes an event for this watcher: as a JSON line or as a protobuf frame.
    fn frame(&self, event: &str, schema: &Type, object: &Value) -> Bytes {
        if self.call.form.media != Media::Protobuf {
            return line(event, object);
        }
        let body = proto::encode_answer(object).unwrap_or_else(|| proto::encode(schema, object));
        proto::watch_frame(event, &body).into()
    }
}

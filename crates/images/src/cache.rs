//! The cache of registries' answers about images, with the time for which each answer is valid. It has no clock: `now` is an argument.
//!
//! An image named by digest never changes. An image named by tag is requested again after ten minutes; while its registry fails, the old
//! answer is valid for up to a day. After a failure the image is not requested again for 30 s. A registry that answers "too many requests"
//! gets none for as long as it says.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use crate::{error::AskError, manifest::Content};

/// How long the answer about a tag is valid without a new request.
const TAG_HOLDS: Duration = Duration::from_secs(600);
/// How long the answer about a tag is used while its registry fails.
const STALE_HOLDS: Duration = Duration::from_secs(86_400);
/// How long no new request is made for an image after a failure.
pub(crate) const FAILURE_HOLDS: Duration = Duration::from_secs(30);
/// The maximum number of cached images; the least recently used ones are dropped first.
const MOST_IMAGES: usize = 4_000;
/// The maximum number of registries whose `Retry-After` is remembered.
const MOST_REGISTRIES: usize = 1_000;

/// The full name of an image, with the credentials of the pod that fit it. Credentials are part of the key, so a pod never sees an answer
/// that another pod's credentials obtained.
pub(crate) type Key = (String, Vec<crate::keyring::Credentials>);

#[derive(Debug)]
struct Entry {
    learnt: Option<(Content, Instant)>,
    failed: Option<(AskError, Instant)>,
    by_digest: bool,
    used: Instant,
}

/// The cached answers of all registries.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    images: HashMap<Key, Entry>,
    /// The time until which each registry or mirror must not be asked.
    quiet: HashMap<String, Instant>,
}

/// The result of looking up an image in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CacheLookup {
    /// The content of the image is cached.
    Hit(Content),
    /// The last request for the image failed.
    Failed(AskError),
    /// Nothing is cached for the image.
    Miss,
}

impl Cache {
    /// Returns the cached answer about an image.
    pub(crate) fn get(&mut self, key: &Key, now: Instant) -> CacheLookup {
        let Some(entry) = self.images.get_mut(key) else {
            return CacheLookup::Miss;
        };
        entry.used = now;
        let holds = |at: Instant| entry.by_digest || now < at + STALE_HOLDS;
        match (&entry.learnt, &entry.failed) {
            // Before the failure: while a registry is down, an old answer is better than none.
            (Some((content, at)), _) if holds(*at) => CacheLookup::Hit(content.clone()),
            (_, Some((error, _))) => CacheLookup::Failed(error.clone()),
            _ => CacheLookup::Miss,
        }
    }

    /// Returns a cached answer about an image with this name, with any credentials.
    pub(crate) fn known_to_any(&self, name: &str) -> Option<Content> {
        let mut same = self.images.iter().filter(|((known, _), _)| known == name);
        same.find_map(|(_, entry)| entry.learnt.as_ref())
            .map(|(content, _)| content.clone())
    }

    /// Returns whether the registry should be asked about an image; a failure within the last `failure_holds` counts as an answer.
    pub(crate) fn is_due(
        &self,
        key: &Key,
        registry: &str,
        failure_holds: Duration,
        now: Instant,
    ) -> bool {
        if self.rests(registry, now) {
            return false;
        }
        let Some(entry) = self.images.get(key) else {
            return true;
        };
        let is_known = entry
            .learnt
            .as_ref()
            .is_some_and(|(_, at)| entry.by_digest || now < *at + TAG_HOLDS);
        let has_failed = entry
            .failed
            .as_ref()
            .is_some_and(|(_, at)| now < *at + failure_holds);
        !is_known && !has_failed
    }

    /// Returns whether a registry or mirror must not be asked at present.
    pub(crate) fn rests(&self, host: &str, now: Instant) -> bool {
        self.quiet.get(host).is_some_and(|until| now < *until)
    }

    /// Records that a registry or mirror asked for a pause, if its error says so.
    pub(crate) fn heed(&mut self, host: &str, error: &AskError, now: Instant) {
        let AskError::TooMany { retry_after, .. } = error else {
            return;
        };
        // Expired entries are dropped first, so that the bound counts only pauses that still matter.
        self.quiet.retain(|_, until| now < *until);
        if self.quiet.len() < MOST_REGISTRIES {
            self.quiet.insert(host.to_owned(), now + *retry_after);
        }
    }

    /// Records the answer of a registry.
    pub(crate) fn note(
        &mut self,
        key: Key,
        registry: &str,
        by_digest: bool,
        answer: Result<Content, AskError>,
        now: Instant,
    ) {
        if let Err(error) = &answer {
            self.heed(registry, error, now);
        }
        self.make_room(&key);
        let entry = self.images.entry(key).or_insert(Entry {
            learnt: None,
            failed: None,
            by_digest,
            used: now,
        });
        match answer {
            Ok(content) => {
                entry.learnt = Some((content, now));
                entry.failed = None;
            }
            Err(error) => {
                // The image is gone or the credentials no longer fit, so an old answer would place pods that
                // cannot start.
                if error.is_final() {
                    entry.learnt = None;
                }
                entry.failed = Some((error, now));
            }
        }
    }

    /// Drops a tenth of the images if there are too many, so that the cache is not sorted again for each new image.
    fn make_room(&mut self, key: &Key) {
        if self.images.len() < MOST_IMAGES || self.images.contains_key(key) {
            return;
        }
        let mut used: Vec<Instant> = self.images.values().map(|entry| entry.used).collect();
        used.sort_unstable();
        let oldest = used[MOST_IMAGES / 10];
        self.images.retain(|_, entry| entry.used > oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        (name.to_owned(), Vec::new())
    }

    fn content(digest: &str) -> Content {
        Content {
            digest: digest.to_owned(),
            variants: Ok(Vec::new()),
        }
    }

    fn failure() -> AskError {
        AskError::Unreachable {
            host: "r".to_owned(),
            why: "connection refused".to_owned(),
        }
    }

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_tag_is_asked_for_again_after_ten_minutes_and_a_digest_never() {
        let (mut cache, start) = (Cache::default(), Instant::now());
        cache.note(key("tag"), "r", false, Ok(content("a")), start);
        cache.note(key("digest"), "r", true, Ok(content("b")), start);
        assert!(!cache.is_due(&key("tag"), "r", FAILURE_HOLDS, after(start, 599)));
        assert!(cache.is_due(&key("tag"), "r", FAILURE_HOLDS, after(start, 600)));
        let year = after(start, 365 * 86_400);
        assert!(!cache.is_due(&key("digest"), "r", FAILURE_HOLDS, year));
        assert_eq!(
            cache.get(&key("digest"), year),
            CacheLookup::Hit(content("b"))
        );
    }

    #[test]
    fn while_the_registry_fails_a_tag_is_believed_for_a_day() {
        let (mut cache, start) = (Cache::default(), Instant::now());
        cache.note(key("tag"), "r", false, Ok(content("a")), start);
        cache.note(key("tag"), "r", false, Err(failure()), after(start, 600));
        assert!(!cache.is_due(&key("tag"), "r", FAILURE_HOLDS, after(start, 629)));
        assert!(cache.is_due(&key("tag"), "r", FAILURE_HOLDS, after(start, 630)));
        let lookup = cache.get(&key("tag"), after(start, 86_399));
        assert_eq!(lookup, CacheLookup::Hit(content("a")));
        let lookup = cache.get(&key("tag"), after(start, 86_400));
        assert_eq!(lookup, CacheLookup::Failed(failure()));
    }

    #[test]
    fn an_image_that_is_gone_is_known_no_longer() {
        let (mut cache, start) = (Cache::default(), Instant::now());
        cache.note(key("tag"), "r", false, Ok(content("a")), start);
        let gone = AskError::NotFound {
            host: "r".to_owned(),
        };
        cache.note(key("tag"), "r", false, Err(gone.clone()), after(start, 600));
        assert_eq!(
            cache.get(&key("tag"), after(start, 600)),
            CacheLookup::Failed(gone)
        );
    }

    #[test]
    fn a_registry_that_wants_fewer_requests_is_left_alone_with_all_of_its_images() {
        let (mut cache, start) = (Cache::default(), Instant::now());
        let error = AskError::TooMany {
            host: "r".to_owned(),
            retry_after: Duration::from_secs(120),
        };
        cache.note(key("a"), "r", false, Err(error), start);
        assert!(!cache.is_due(&key("b"), "r", FAILURE_HOLDS, after(start, 119)));
        assert!(cache.is_due(&key("b"), "other", FAILURE_HOLDS, start));
        assert!(cache.is_due(&key("b"), "r", FAILURE_HOLDS, after(start, 120)));
    }

    #[test]
    fn the_images_used_longest_ago_make_room() {
        let (mut cache, start) = (Cache::default(), Instant::now());
        for index in 0..MOST_IMAGES {
            let at = start + Duration::from_millis(index as u64);
            cache.note(key(&index.to_string()), "r", true, Ok(content("a")), at);
        }
        let now = after(start, 3600);
        cache.get(&key("0"), now);
        cache.note(key("new"), "r", true, Ok(content("b")), now);
        assert!(cache.images.len() <= MOST_IMAGES);
        assert!(
            !cache.is_due(&key("0"), "r", FAILURE_HOLDS, now),
            "it was used just now"
        );
        assert!(cache.is_due(&key("1"), "r", FAILURE_HOLDS, now));
    }
}

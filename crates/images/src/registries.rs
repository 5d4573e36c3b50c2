//! The door to all registries: answers from memory at once, and asks in the background, each image once at a time.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use mullion_engine::images::{ImageRef, System};
use tokio::{
    sync::{Semaphore, watch},
    time::{Instant, timeout},
};

use crate::{
    cache::{Cache, CacheLookup, FAILURE_HOLDS, Key},
    dial::Dial,
    error::AskError,
    keyring::Keyring,
    manifest::{Content, Variant},
    registry::{self, Question, Resting},
    settings::Settings,
};

/// How long whoever needs an answer waits for it.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a registry is given, from the first connection to the last answer: less than [`PATIENCE`], so that its failure is known to
/// those who waited.
const CALL_PATIENCE: Duration = Duration::from_millis(950);
/// How registries are asked while a request waits for the answer.
const PROMPT: RequestPolicy = RequestPolicy {
    patience: CALL_PATIENCE,
    failure_holds: FAILURE_HOLDS,
};
/// How registries are asked when nothing waits: each attempt takes longer, and the next one comes sooner.
const PATIENT: RequestPolicy = RequestPolicy {
    patience: Duration::from_secs(5),
    failure_holds: Duration::from_secs(5),
};
/// Requests to one registry at a time.
const CALLS_PER_REGISTRY: usize = 4;
/// Images that are asked for, or wait to be, at a time.
const MOST_ASKED: usize = 256;

/// The result of looking up an image in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageLookup {
    /// Its registry has answered.
    Content(Content),
    /// Its registry has been asked and gave no answer.
    Failed(AskError),
    /// Its registry has not been asked yet.
    NotAsked,
    /// Its registry may not be asked.
    NotPermitted,
}

/// How registries are asked.
#[derive(Clone, Copy)]
struct RequestPolicy {
    /// How long a registry is given.
    patience: Duration,
    /// How long a failure keeps the image from being asked for again.
    failure_holds: Duration,
}

/// All registries.
pub struct Registries {
    settings: Settings,
    dial: Arc<dyn Dial>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    cache: Cache,
    /// Images that are being asked for; the receiver ends with the answer.
    asked: HashMap<Key, watch::Receiver<()>>,
    /// The calls that each registry may still get; an idle registry has no entry.
    calls: HashMap<String, Arc<Semaphore>>,
}

impl Registries {
    /// The registries that `settings` permits, over `dial`.
    pub fn new(settings: Settings, dial: Arc<dyn Dial>) -> Arc<Self> {
        Arc::new(Registries {
            settings,
            dial,
            state: Mutex::default(),
        })
    }

    /// Returns whether the image's registry may be asked.
    pub fn permits(&self, image: &ImageRef) -> bool {
        self.settings.permits(image.registry())
    }

    /// Returns what is known of an image; never waits.
    pub fn cached(&self, image: &ImageRef, keyring: &Keyring) -> ImageLookup {
        if !self.permits(image) {
            return ImageLookup::NotPermitted;
        }
        let lookup = self.state().cache.get(&key(image, keyring), Instant::now());
        match lookup {
            CacheLookup::Hit(content) => ImageLookup::Content(content),
            CacheLookup::Failed(error) => ImageLookup::Failed(error),
            CacheLookup::Miss => ImageLookup::NotAsked,
        }
    }

    /// Asks the image's registry unless the answer is known, and waits for it a second at most. Whoever asks for the same image meanwhile
    /// waits for the same answer.
    pub async fn fetch(self: &Arc<Self>, image: &ImageRef, keyring: &Keyring) {
        if let Some(mut answered) = self.begin(image, keyring, PROMPT) {
            // It ends with an error when the answer is there: the sender is gone.
            let _ = timeout(PATIENCE, answered.changed()).await;
        }
    }

    /// Asks the image's registry as [`Registries::fetch`] does, then for the sizes of its images for Windows and for what they start.
    pub async fn fetch_programs(self: &Arc<Self>, image: &ImageRef, keyring: &Keyring) {
        self.fetch(image, keyring).await;
        let ImageLookup::Content(content) = self.cached(image, keyring) else {
            return;
        };
        let mut variants = content.variants.iter().flatten();
        let is_unknown =
            |own: &Variant| own.platform.system == System::Windows && own.program.is_none();
        if variants.any(is_unknown) {
            let calls = self.calls(image);
            let question = Question::Programs(&content);
            self.look_into(image, keyring, key(image, keyring), question, &calls)
                .await;
            self.state().forget_idle(image.registry());
        }
    }

    /// Starts to ask about an image again and gives its registry 5 s. Does nothing if the last failure is less than 5 s old, or as long as a
    /// registry's `Retry-After` says.
    pub fn ask_again(self: &Arc<Self>, image: &ImageRef, keyring: &Keyring) {
        self.begin(image, keyring, PATIENT);
    }

    /// Starts to ask, if that is due; returns what ends with the answer.
    fn begin(
        self: &Arc<Self>,
        image: &ImageRef,
        keyring: &Keyring,
        policy: RequestPolicy,
    ) -> Option<watch::Receiver<()>> {
        if !self.permits(image) {
            return None;
        }
        let key = key(image, keyring);
        let mut state = self.state();
        if let Some(answered) = state.asked.get(&key) {
            return Some(answered.clone());
        }
        let is_due =
            state
                .cache
                .is_due(&key, image.registry(), policy.failure_holds, Instant::now());
        if !is_due || state.asked.len() >= MOST_ASKED {
            return None;
        }
        let (done, answered) = watch::channel(());
        state.asked.insert(key.clone(), answered.clone());
        let calls = state.calls_to(image);
        drop(state);
        let (this, image, keyring) = (self.clone(), image.clone(), keyring.clone());
        tokio::spawn(async move {
            let answer = this.ask(&image, &keyring, &key, &calls, policy).await;
            let content = answer
                .as_ref()
                .and_then(|answer| answer.as_ref().ok())
                .cloned();
            this.end(&image, key.clone(), answer);
            drop(done);
            if let Some(content) = content.filter(|_| this.settings.sizes) {
                this.measure(&image, &keyring, key, &content, &calls).await;
            }
        });
        Some(answered)
    }

    async fn ask(
        &self,
        image: &ImageRef,
        keyring: &Keyring,
        key: &Key,
        calls: &Semaphore,
        policy: RequestPolicy,
    ) -> Option<Result<Content, AskError>> {
        let _call = calls.acquire().await.ok()?;
        // An earlier call may have been told to leave the registry alone.
        let (now, holds) = (Instant::now(), policy.failure_holds);
        if !self.state().cache.is_due(key, image.registry(), holds, now) {
            return None;
        }
        let asked = registry::ask(
            &self.dial,
            &self.settings,
            image,
            keyring,
            Question::Content,
            self,
        );
        let answer = timeout(policy.patience, asked).await;
        let answer = answer.unwrap_or_else(|_| {
            Err(AskError::TimedOut {
                host: image.registry().to_owned(),
                patience: policy.patience,
            })
        });
        match &answer {
            Ok(content) => tracing::debug!("{} is {}", image.full_name(), content.digest),
            Err(error) => tracing::debug!("{}: {error}", image.full_name()),
        }
        Some(answer)
    }

    /// Adds the sizes of an image's variants to what is known; without an answer they stay unknown.
    async fn measure(
        &self,
        image: &ImageRef,
        keyring: &Keyring,
        key: Key,
        content: &Content,
        calls: &Semaphore,
    ) {
        let mut variants = content.variants.iter().flatten();
        if variants.any(|variant| variant.bytes.is_none()) {
            let question = Question::Sizes(content);
            self.look_into(image, keyring, key, question, calls).await;
        }
    }

    /// Adds what a further question finds out to what is known of an image; without an answer that stays as it is.
    async fn look_into(
        &self,
        image: &ImageRef,
        keyring: &Keyring,
        key: Key,
        question: Question<'_>,
        calls: &Semaphore,
    ) {
        let Ok(_call) = calls.acquire().await else {
            return;
        };
        if self.rests(image.registry()) {
            return;
        }
        let asked = registry::ask(&self.dial, &self.settings, image, keyring, question, self);
        if let Ok(Ok(content)) = timeout(CALL_PATIENCE, asked).await {
            let now = Instant::now();
            let by_digest = image.digest.is_some();
            let mut state = self.state();
            state
                .cache
                .note(key, image.registry(), by_digest, Ok(content), now);
        }
    }

    /// Returns what any pod's question about an image was answered.
    pub fn known_to_any(&self, image: &ImageRef) -> Option<Content> {
        self.state().cache.known_to_any(&image.full_name())
    }

    fn end(&self, image: &ImageRef, key: Key, answer: Option<Result<Content, AskError>>) {
        let mut state = self.state();
        state.asked.remove(&key);
        state.forget_idle(image.registry());
        if let Some(answer) = answer {
            let by_digest = image.digest.is_some();
            let now = Instant::now();
            let registry = image.registry();
            state.cache.note(key, registry, by_digest, answer, now);
        }
    }

    fn calls(&self, image: &ImageRef) -> Arc<Semaphore> {
        self.state().calls_to(image)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns the calls that the image's registry may still get.
    fn calls_to(&mut self, image: &ImageRef) -> Arc<Semaphore> {
        let calls = self.calls.entry(image.registry().to_owned());
        calls
            .or_insert_with(|| Arc::new(Semaphore::new(CALLS_PER_REGISTRY)))
            .clone()
    }

    /// Forgets the calls to a registry if nobody but the caller has to do with it.
    fn forget_idle(&mut self, registry: &str) {
        // Whoever still waits for a call holds the semaphore too.
        let is_idle = |calls: &Arc<Semaphore>| {
            Arc::strong_count(calls) <= 2 && calls.available_permits() == CALLS_PER_REGISTRY
        };
        if self.calls.get(registry).is_some_and(is_idle) {
            self.calls.remove(registry);
        }
    }
}

impl Resting for Registries {
    fn rests(&self, host: &str) -> bool {
        self.state().cache.rests(host, Instant::now())
    }

    fn heed(&self, host: &str, error: &AskError) {
        self.state().cache.heed(host, error, Instant::now());
    }
}

fn key(image: &ImageRef, keyring: &Keyring) -> Key {
    (image.full_name(), keyring.fitting(image))
}

#[cfg(test)]
mod tests;

//! The entry point for questions about images: answers from memory at once, and asks registries in the background, each image only once at a
//! time.

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

/// How long a caller waits for an answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// The time limit for a registry, from the first connection to the last response. It is shorter than [`PATIENCE`], so that waiting callers
/// still learn that the registry failed.
const CALL_PATIENCE: Duration = Duration::from_millis(950);
/// The policy while a caller waits for the answer.
const PROMPT: RequestPolicy = RequestPolicy {
    patience: CALL_PATIENCE,
    failure_holds: FAILURE_HOLDS,
};
/// The policy when no caller waits: each attempt may take longer, and a failed image is requested again sooner.
const PATIENT: RequestPolicy = RequestPolicy {
    patience: Duration::from_secs(5),
    failure_holds: Duration::from_secs(5),
};
/// The maximum number of simultaneous requests to one registry.
const CALLS_PER_REGISTRY: usize = 4;
/// The maximum number of images that are being requested or waiting for that.
const MOST_ASKED: usize = 256;

/// The result of looking up an image in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageLookup {
    /// The registry has answered.
    Content(Content),
    /// The registry was asked and gave no answer.
    Failed(AskError),
    /// The registry has not been asked yet.
    NotAsked,
    /// The settings do not permit asking the registry.
    NotPermitted,
}

/// The time limits of requests.
#[derive(Clone, Copy)]
struct RequestPolicy {
    /// The time limit for a registry.
    patience: Duration,
    /// How long no new request is made for an image after a failure.
    failure_holds: Duration,
}

/// All registries, with the cached answers and the requests in progress.
pub struct Registries {
    settings: Settings,
    dial: Arc<dyn Dial>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    cache: Cache,
    /// The images being requested; the channel closes when the answer has arrived.
    asked: HashMap<Key, watch::Receiver<()>>,
    /// The free request slots of each registry; an idle registry has no entry.
    calls: HashMap<String, Arc<Semaphore>>,
}

impl Registries {
    /// Creates the entry point to the registries that `settings` permits; `dial` opens connections.
    pub fn new(settings: Settings, dial: Arc<dyn Dial>) -> Arc<Self> {
        Arc::new(Registries {
            settings,
            dial,
            state: Mutex::default(),
        })
    }

    /// Returns whether the settings permit asking the image's registry.
    pub fn permits(&self, image: &ImageRef) -> bool {
        self.settings.permits(image.registry())
    }

    /// Returns the cached answer about an image, without waiting.
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

    /// Asks the image's registry unless the answer is cached, and waits for it at most a second. Callers that ask for the same image
    /// meanwhile wait for the same answer.
    pub async fn fetch(self: &Arc<Self>, image: &ImageRef, keyring: &Keyring) {
        if let Some(mut answered) = self.begin(image, keyring, PROMPT) {
            // The channel returns an error as soon as the answer has arrived, because the sender is dropped then.
            let _ = timeout(PATIENCE, answered.changed()).await;
        }
    }

    /// Asks the image's registry as [`Registries::fetch`] does, and then for the sizes and programs of its Windows images.
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

    /// Starts another request about an image with a time limit of 5 s. Does nothing if the last failure is less than 5 s old, or while the
    /// registry's `Retry-After` lasts.
    pub fn ask_again(self: &Arc<Self>, image: &ImageRef, keyring: &Keyring) {
        self.begin(image, keyring, PATIENT);
    }

    /// Starts a request if one is due. Returns the channel that closes when the answer has arrived.
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
        // A second question would only add load; both callers wait for the first.
        if let Some(answered) = state.asked.get(&key) {
            return Some(answered.clone());
        }
        let is_due =
            state
                .cache
                .is_due(&key, image.registry(), policy.failure_holds, Instant::now());
        // Beyond the bound nothing is queued: the caller decides without an answer, and a later pod asks
        // again.
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
            // The cache has the answer before the channel closes, so that whoever waits finds it.
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
        // While this request waited for its slot, another one may have failed and asked for a pause, or the image may have been answered.
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

    /// Adds the sizes of an image's variants to the cached answer. If the registry does not answer, they stay unknown.
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

    /// Adds the answer to a further question to the cached answer about an image. If the registry does not answer, the cached answer stays
    /// as it is.
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

    /// Returns a cached answer about an image, obtained with any pod's credentials.
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
    /// Returns the request slots of the image's registry.
    fn calls_to(&mut self, image: &ImageRef) -> Arc<Semaphore> {
        let calls = self.calls.entry(image.registry().to_owned());
        calls
            .or_insert_with(|| Arc::new(Semaphore::new(CALLS_PER_REGISTRY)))
            .clone()
    }

    /// Forgets the slots of a registry that no other request uses.
    fn forget_idle(&mut self, registry: &str) {
        // Requests that wait for a slot hold a reference too, so a count of 2 means only the map and the caller.
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

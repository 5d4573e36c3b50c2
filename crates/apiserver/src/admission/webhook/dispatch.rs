//! The order in which webhooks are asked: those that change objects one after the other, those that only judge all at once.
//!
//! A change makes the plugins look again, and with them the webhooks that ask for it (`reinvocationPolicy: IfNeeded`): once, as upstream.

use std::{collections::BTreeSet, time::Duration};

use futures::future::join_all;
use mullion_kube_text::{golang::quote, status::Status};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    Hooks,
    hook::{AddressError, Hook},
    policy,
    post::{self, CallError},
    review::{self, ReviewError, Verdict},
    subject::{Subject, View, Views},
    trust::ClientError,
};

/// The state that the first round of mutation leaves for the second.
#[derive(Default)]
pub(crate) struct Reinvocation {
    /// True if a policy or webhook has changed the object.
    pub(crate) changed: bool,
    policies: Stage<policy::mutating::Key>,
    webhooks: Stage<usize>,
}

impl Reinvocation {
    /// Begins the second round.
    pub(crate) fn repeat(&mut self) {
        self.policies.again = true;
        self.webhooks.again = true;
    }
}

/// The state of the first round for one group of mutators, the policies or the webhooks.
pub(super) struct Stage<K> {
    again: bool,
    /// The mutators that were called and are to be called again if another one changes the object later.
    invoked: BTreeSet<K>,
    /// The mutators that must be called again, because the object has changed since.
    due: BTreeSet<K>,
    /// The object when the first round was over, if anybody wants to be asked again.
    output: Option<Value>,
}

impl<K> Default for Stage<K> {
    fn default() -> Self {
        Stage {
            again: false,
            invoked: BTreeSet::new(),
            due: BTreeSet::new(),
            output: None,
        }
    }
}

impl<K: Ord> Stage<K> {
    /// Checks at the start of the second round whether the object was changed since the first.
    pub(super) fn begin(&mut self, object: &Value) {
        if self.again && self.output.take().is_some_and(|output| output != *object) {
            self.something_changed();
        }
    }

    /// Remembers the object at the end of the first round.
    pub(super) fn end(&mut self, object: &Value) {
        if !self.again && !self.invoked.is_empty() {
            self.output = Some(object.clone());
        }
    }

    pub(super) fn something_changed(&mut self) {
        self.due.append(&mut self.invoked);
    }

    /// Returns whether a mutator is to be called. The second round calls no mutator that the first round did not call.
    pub(super) fn is_due(&self, key: &K) -> bool {
        !self.again || self.due.contains(key)
    }

    pub(super) fn invoked(&mut self, key: K) {
        self.invoked.insert(key);
    }
}

/// Calls the mutating policies, then the mutating webhooks, each in the order of their names.
pub(crate) async fn mutate(
    hooks: &Hooks,
    subject: &Subject<'_>,
    object: &mut Value,
    old: Option<&Value>,
    rounds: &mut Reinvocation,
) -> Result<(), Status> {
    if hooks.mutating.is_empty() && hooks.mutations.is_empty() {
        return Ok(());
    }
    let Some(views) = Views::of(subject) else {
        return Ok(());
    };
    let stage = &mut rounds.policies;
    if policy::mutating::mutate(&hooks.mutations, &views, object, old, stage)? {
        // kube-apiserver counts a policy's patch as a change even if the object is the same afterwards.
        rounds.changed = true;
    }
    let stage = &mut rounds.webhooks;
    // After the policies: a webhook must be called again if a policy has changed the object since the first round.
    stage.begin(object);
    for (index, hook) in hooks.mutating.iter().enumerate() {
        // Asked again for each webhook, because the webhooks before it may have changed the labels that its selector matches.
        let Some(view) = views.wanted(&hook.matcher, present(object), old)? else {
            continue;
        };
        if !stage.is_due(&index) {
            continue;
        }
        let asked = change(&views, hook, &view, object, old).await;
        if let Ok(true) = asked {
            rounds.changed = true;
            // Before this webhook is noted as called: its own change is no reason to call it again.
            stage.something_changed();
        }
        if hook.reinvoked {
            stage.invoked(index);
        }
        // Last, so that the state above is right even where the failure policy lets the request go on.
        asked
            .map(|_| ())
            .or_else(|failure| failure.settle(hook, subject))?;
    }
    stage.end(object);
    Ok(())
}

/// Calls one mutating webhook and applies its patch. Returns whether the object has changed.
async fn change(
    views: &Views<'_>,
    hook: &Hook,
    view: &View,
    object: &mut Value,
    old: Option<&Value>,
) -> Result<bool, Failure> {
    let shown = present(object).map(|object| views.shown(view, object));
    let shown_old = old.map(|old| views.shown(view, old));
    let verdict = ask(views, hook, view, shown.as_ref(), shown_old.as_ref(), true).await?;
    let Some(patch) = verdict.patch else {
        return Ok(false);
    };
    let shown = shown.ok_or_else(|| Failure::Refused(nothing_to_change(&hook.matcher.name)))?;
    let changed = views
        .patched(view, &shown, &patch)
        .map_err(Failure::Refused)?;
    if changed == shown {
        return Ok(false);
    }
    views.adopt(view, object, changed);
    Ok(true)
}

/// Returns the error for a patch to a request that has no object.
fn nothing_to_change(webhook: &str) -> Status {
    Status::internal(format!(
        "admission webhook {} attempted to modify the object, which is not supported for this operation",
        quote(webhook)
    ))
}

/// Evaluates the validating policies, then calls the validating webhooks concurrently. The first refusal by name is returned.
pub(crate) async fn judge(
    hooks: &Hooks,
    subject: &Subject<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    if hooks.validating.is_empty() && hooks.policies.is_empty() {
        return Ok(());
    }
    let Some(views) = Views::of(subject) else {
        return Ok(());
    };
    policy::validating::judge(&hooks.policies, &views, present(object), old)?;
    let mut wanted = Vec::new();
    for hook in &hooks.validating {
        if let Some(view) = views.wanted(&hook.matcher, present(object), old)? {
            wanted.push((hook, view));
        }
    }
    let views = &views;
    let verdicts = wanted.iter().map(|(hook, view)| async move {
        let shown = present(object).map(|object| views.shown(view, object));
        let shown_old = old.map(|old| views.shown(view, old));
        ask(views, hook, view, shown.as_ref(), shown_old.as_ref(), false).await
    });
    let verdicts = join_all(verdicts).await;
    // In the order of the names and not of the answers, so that a client gets the same error each time.
    for ((hook, _), verdict) in wanted.iter().zip(verdicts) {
        verdict
            .map(|_| ())
            .or_else(|failure| failure.settle(hook, subject))?;
    }
    Ok(())
}

/// Returns the object, or `None` for a deletion, which has no new one.
pub(super) fn present(object: &Value) -> Option<&Value> {
    (!object.is_null()).then_some(object)
}

/// The reason why a webhook stops a request, or may stop it.
enum Failure {
    /// The call failed or its response is invalid: the webhook's failure policy decides.
    Calling(CallingError),
    /// The request ends with this.
    Refused(Status),
}

/// The reason why a webhook has not decided.
#[derive(Debug, thiserror::Error)]
enum CallingError {
    /// The webhook knows no version of a review that this server knows.
    #[error(
        "could not create admission objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)"
    )]
    NoVersion,
    /// The webhook has no usable address.
    #[error("could not get REST client: {0}")]
    Address(AddressError),
    /// No client can be made for the webhook.
    #[error("could not get REST client: {0}")]
    Client(ClientError),
    /// The webhook does not answer.
    #[error("failed to call webhook: {0}")]
    Call(CallError),
    /// The answer is no decision.
    #[error(transparent)]
    Review(#[from] ReviewError),
}

impl From<CallError> for CallingError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::NoClient(why) => CallingError::Client(why),
            other => CallingError::Call(other),
        }
    }
}

impl<E: Into<CallingError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::Calling(error.into())
    }
}

impl Failure {
    fn settle(self, hook: &Hook, subject: &Subject<'_>) -> Result<(), Status> {
        let why = match self {
            Failure::Refused(status) => return Err(status),
            Failure::Calling(why) => why,
        };
        let error = format!(
            "failed calling webhook {}: {why}",
            quote(&hook.matcher.name)
        );
        if hook.matcher.fails {
            tracing::warn!(webhook = hook.matcher.name, error, "the request fails");
            return Err(Status::internal(error));
        }
        tracing::warn!(webhook = hook.matcher.name, error, "the request goes on");
        // `failurePolicy: Ignore` forgives the webhook, but not that the whole request has run out of time.
        if left(subject).is_zero() {
            return Err(out_of_time());
        }
        Ok(())
    }
}

fn left(subject: &Subject<'_>) -> Duration {
    subject.deadline.saturating_duration_since(Instant::now())
}

fn out_of_time() -> Status {
    let why = "Timeout: request did not complete within requested timeout";
    Status::new(504, "Timeout", why)
}

/// Calls one webhook.
async fn ask(
    views: &Views<'_>,
    hook: &Hook,
    view: &View,
    object: Option<&Value>,
    old: Option<&Value>,
    changes: bool,
) -> Result<Verdict, Failure> {
    let subject = views.subject;
    // kube-apiserver refuses here although nothing has failed: a dry run must not have side effects, so the webhook cannot be asked.
    if subject.dry_run && hook.has_side_effects {
        let webhook = quote(&hook.matcher.name);
        let why = format!("admission webhook {webhook} does not support dry run");
        return Err(Failure::Refused(Status::bad_request(why)));
    }
    let time_left = left(subject);
    if time_left.is_zero() {
        return Err(Failure::Refused(out_of_time()));
    }
    let version = hook.review.ok_or(CallingError::NoVersion)?;
    let uid = uuid::Uuid::new_v4().to_string();
    let body = review::encode(version, &uid, &views.question(view), object, old);
    let address = hook.address.as_ref();
    let address = address.map_err(|why| CallingError::Address(why.clone()))?;
    let answer = post::post(
        subject.clients,
        subject.registry,
        address,
        &hook.url,
        body,
        // The webhook's own time, but never beyond that of the request.
        hook.timeout.min(time_left),
    );
    let mut verdict = review::decode(version, &uid, changes, &answer.await?)?;
    // Also of a refusal: the warnings may explain it.
    for warning in std::mem::take(&mut verdict.warnings) {
        (subject.warn)(warning);
    }
    if verdict.allowed {
        return Ok(verdict);
    }
    let status = verdict.result.status(&hook.matcher.name);
    tracing::debug!(
        webhook = hook.matcher.name,
        status = status.message,
        "denied"
    );
    Err(Failure::Refused(status))
}

//! The stages that store an object and make the outcome of the write.

use std::sync::Arc;

use mullion_kube_text::status::Status;
use mullion_schema::ownership;
use mullion_store::{Change, EventType, Object};
use serde_json::Value;

use super::{
    claims,
    commit::{draft_from, in_time, release},
    companions,
    pipeline::{Attempt, Target},
};
use crate::{
    http::{call::Call, reply::Outcome},
    object::metadata,
};

impl Attempt<'_> {
    /// Stores the object, or finds that nothing has to be stored. Returns `None` if another write to the object came in between.
    ///
    /// Claims (quota usage) come after everything that may still refuse the write, because they are booked in other objects. They are
    /// given back if the object is not stored after all; dropping the allocation gives back what was allocated.
    pub(super) async fn store(&mut self) -> Result<Option<Outcome>, Status> {
        let behaviour = &self.call.resource().behaviour;
        behaviour.read_back(&mut self.object);
        match &self.target {
            Target::New => self.check_vacancy()?,
            Target::Existing { stored, old, .. } => {
                // Otherwise a repeated write would differ from the stored object by the times in managedFields alone, and be stored.
                ownership::settle_times(&mut self.object, old);
                // kube-apiserver skips a write without a change, so the resourceVersion stays and no watcher sees an event.
                if self.object == *old && is_stored(self.call, &self.object, stored) {
                    return Ok(Some(Outcome::Stored((*stored).clone())));
                }
            }
        }
        if self.options.dry_run {
            return Ok(Some(self.answer_unstored()));
        }
        if let Target::Existing { stored, .. } = &self.target
            && is_released(self.call, &self.object)
        {
            let stored = (*stored).clone();
            return self.delete_released(stored).await;
        }
        let (call, operation) = (self.call, self.target.operation());
        let old = self.target.old();
        let taken = claims::take(call, operation, &self.name, &mut self.object, old).await?;
        let change = self.change();
        let companions = self.allocation.as_mut().map(|values| values.companions());
        let committed = companions::commit(call, change, companions.unwrap_or_default()).await;
        let Ok(Some(stored)) = committed else {
            // Another write came first, or the disk failed. Without this the usage would stay too high until the quota controller's next
            // sync.
            taken.give_back(call).await;
            return committed.map(|_| None);
        };
        if let Some(allocation) = self.allocation.take() {
            allocation.commit();
        }
        Ok(Some(self.answer_stored(stored)))
    }

    /// Checks that a new object comes without a resourceVersion, and that its name is free.
    fn check_vacancy(&mut self) -> Result<(), Status> {
        let call = self.call;
        if !self.options.dry_run {
            // Go's ParseUint takes no sign, while Rust's `parse` would accept a leading `+`.
            let given = metadata::text(&self.object, "resourceVersion");
            let revision = given.parse::<u64>().ok();
            if revision.is_some_and(|revision| revision != 0) && !given.starts_with('+') {
                let why = "resourceVersion should not be set on objects to be created";
                return Err(Status::new(500, "", why));
            }
            // kube-apiserver clears a resourceVersion that is zero or no number; a dry run shows the object as sent.
            metadata::of(&mut self.object).remove("resourceVersion");
        }
        // Before claims are booked, and also for dry runs, which commit nothing.
        match call.row.collection.get(call.key(&self.name).as_str()) {
            Some(existing) => Err(self.already_exists(&existing)),
            None => Ok(()),
        }
    }

    /// Serializes the object, which is in stored form afterwards.
    fn change(&mut self) -> Change {
        let row = &self.call.row;
        match &self.target {
            Target::New => {
                let draft = draft_from(row, EventType::Added, &mut self.object, None);
                Change::Create(self.call.key(&self.name), draft)
            }
            Target::Existing { stored, raw, .. } => {
                let draft = draft_from(row, EventType::Modified, &mut self.object, raw.as_ref());
                Change::Update((*stored).clone(), draft)
            }
        }
    }

    /// Deletes an object that is being deleted and has lost its last finalizer, instead of storing it.
    async fn delete_released(&mut self, stored: Arc<Object>) -> Result<Option<Outcome>, Status> {
        let call = self.call;
        let change = Change::Delete(stored);
        let deleted = in_time(call.row.collection.commit(change, call.now).await)?;
        if deleted.is_none() {
            return Ok(None);
        }
        // After the deletion is stored: an address that is free too early could go to another Service meanwhile.
        release(call, &self.object).await;
        Ok(Some(self.answer_unstored()))
    }

    /// Makes the outcome of a write that stored the object, from the tree in stored form that it was serialized from.
    fn answer_stored(&mut self, stored: Arc<Object>) -> Outcome {
        let row = &self.call.row;
        if row.serves_stored_bytes() {
            return Outcome::Stored(stored);
        }
        let mut object = std::mem::take(&mut self.object);
        row.to_served(&mut object);
        let revision = stored.revision().to_string();
        metadata::of(&mut object).insert("resourceVersion".into(), revision.into());
        Outcome::unfolded(object)
    }

    /// Makes the outcome of a write after which the object is not stored in this form: a dry run, or a deletion.
    fn answer_unstored(&mut self) -> Outcome {
        let resource = self.call.resource();
        let mut object = std::mem::take(&mut self.object);
        match &self.target {
            // As if it had been read back.
            Target::New if resource.rewrites_stored() => resource.behaviour.default(&mut object),
            Target::Existing { raw: Some(raw), .. } => raw.restore(&mut object),
            _ => {}
        }
        Outcome::unfolded(object)
    }

    /// Returns the error for a creation whose name another client took after [`Attempt::store`] had found it free.
    pub(super) fn name_was_taken(&self) -> Status {
        let call = self.call;
        match call.row.collection.get(call.key(&self.name).as_str()) {
            Some(existing) => self.already_exists(&existing),
            None => Status::already_exists(call.resource(), &self.name),
        }
    }

    fn already_exists(&self, existing: &Object) -> Status {
        let base = metadata::text(&self.object, "generateName");
        already_exists(self.call, existing, base)
    }
}

/// Returns the error for an object whose name is taken; `base` is its `generateName`. kube-apiserver speaks of a generated name wherever
/// `generateName` is set, even if the name was given.
pub(super) fn already_exists(call: &Call, existing: &Object, base: &str) -> Status {
    let mut status = Status::already_exists(call.resource(), existing.key().name());
    if !base.is_empty() {
        status
            .message
            .push_str(", the server was not able to generate a unique name for the object");
        if let Some(details) = &mut status.details {
            details.retry_after_seconds = 1;
        }
    }
    if existing.parse()["metadata"]
        .get("deletionTimestamp")
        .is_some()
    {
        status.message.insert_str(0, "object is being deleted: ");
    }
    status
}

/// Returns whether the stored object has every field of the served one, that is, reading filled in no defaults.
fn is_stored(call: &Call, object: &Value, stored: &Object) -> bool {
    if !call.resource().rewrites_stored() {
        return true;
    }
    // A read that filled in defaults must be stored once: kube-apiserver, too, rewrites an object whose stored bytes would differ.
    let mut form = object.clone();
    call.row.to_stored(&mut form);
    form == stored.parse_folded()
}

/// Returns whether an update removes the last finalizer of an object that is being deleted, so that the object goes.
fn is_released(call: &Call, object: &Value) -> bool {
    let metadata = &object["metadata"];
    let no_finalizers = metadata["finalizers"].as_array().is_none_or(Vec::is_empty);
    let no_grace = metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0;
    metadata.get("deletionTimestamp").is_some()
        && no_finalizers
        && no_grace
        && !call.resource().holds_deletion(object)
}

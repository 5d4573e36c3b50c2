//! CreateTags.

use std::collections::BTreeMap;

use mullion_cloud::InstanceId;

use super::{Call, launch_templates::tags_of};
use crate::refusal::Refusal;

/// CreateTags, for instances and launch templates; tags of other resources cannot be changed.
pub(super) fn create(call: &Call<'_>) -> Result<Vec<u8>, Refusal> {
    let root = call.root();
    let ids = root.list("ResourceId");
    let tags = tags_of(&root)?;
    if ids.is_empty() {
        return Err(Refusal::missing("ResourceIdSet"));
    }
    if tags.is_empty() {
        return Err(Refusal::missing("TagSet"));
    }
    call.complete()?;
    let (instances, others): (Vec<_>, Vec<_>) =
        ids.into_iter().partition(|id| id.starts_with("i-"));
    let instances = call.named(&instances)?;
    let has_room = |own: &BTreeMap<String, String>| {
        let mut all: Vec<_> = own.keys().chain(tags.keys()).collect();
        // AWS's own tags do not count towards the limit.
        all.retain(|key| !key.starts_with("aws:"));
        all.sort();
        all.dedup();
        all.len() <= 50
    };
    if !instances.iter().all(|own| has_room(&own.tags)) {
        return Err(Refusal::new(
            "TagLimitExceeded",
            "The maximum number of 50 tags for a resource has been reached.",
        ));
    }
    let mut state = call.state();
    // All ids are checked before a tag is changed, so that a refused request changes nothing.
    for id in &others {
        state.template_tags(id)?;
    }
    for id in &others {
        state.template_tags(id)?.extend(tags.clone());
    }
    drop(state);
    for instance in instances {
        let id: &InstanceId = &instance.id;
        call.ec2().tag(id, tags.clone());
    }
    Ok(call.answer(|xml| xml.leaf("return", true)))
}

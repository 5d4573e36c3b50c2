//! Determines the chunks of the state's CapacityBuffers, which are planned like pending pods, by the provisioner's rules.
//!
//! Whether the cluster's feature gate `CapacityBuffer` is on is known from a buffer's status only: a buffer that no controller has seen, such
//! as one of a manifest, counts as written.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PodTemplate, PodTemplateSpec};
use kube::ResourceExt;
use mullion_api::capacity_buffer::CapacityBuffer;
use mullion_controllers::buffers::{self, Templates};
use mullion_engine::model::PodSpec;
use serde::Deserialize;
use serde_json::json;

use super::{kinds::BUFFER, pod_owner::PodOwner, state::State};
use crate::failure::Failure;

/// The chunks of all buffers that count.
#[derive(Default)]
pub(super) struct Chunks {
    pub(super) pods: Vec<PodSpec>,
    /// A sentence about each buffer: what it keeps room for, or why it does not count.
    pub(super) remarks: Vec<String>,
}

impl Chunks {
    /// Determines the chunks of a state.
    ///
    /// # Errors
    /// A buffer or the template of its pods is malformed.
    pub(super) fn of(state: &State) -> Result<Self, Failure> {
        let buffers: Vec<CapacityBuffer> = state.kept(BUFFER).map_err(Failure::input)?;
        let addresses = state.windows_addresses();
        let mut found = Chunks::default();
        for buffer in &buffers {
            let home = buffer.namespace().unwrap_or_default();
            let named = format!("{BUFFER} {home}/{}", buffer.name_any());
            let chunks = if buffers::is_shut_out(buffer) {
                Err("the feature gate CapacityBuffer of the cluster is off".to_owned())
            } else {
                buffers::chunks(buffer, state, addresses).map_err(|why| why.to_string())
            };
            let chunks = match chunks {
                Ok(chunks) => chunks,
                Err(why) => {
                    found.remarks.push(format!("{named} does not count: {why}"));
                    continue;
                }
            };
            let needs_gate = match buffer.status {
                Some(_) => "",
                None => ", which needs the feature gate CapacityBuffer in a cluster",
            };
            let pods = match chunks.len() {
                1 => "1 pod".to_owned(),
                more => format!("{more} pods"),
            };
            found
                .remarks
                .push(format!("{named} keeps room for {pods}{needs_gate}"));
            for chunk in chunks {
                let spec = PodSpec::deserialize(&json!(*chunk))
                    .map_err(|error| Failure::input(format!("{named}: {error}")))?;
                // Buffers of manifests have no uid that could tell their chunks apart; names do for all.
                found.pods.push(PodSpec {
                    uid: String::new(),
                    ..spec
                });
            }
        }
        Ok(found)
    }
}

/// Returns whether a buffer of the state names a workload as the template of its pods.
pub(super) fn name(state: &State, workload: &PodOwner) -> bool {
    state.objects(BUFFER).any(|buffer| {
        let reference = &buffer["spec"]["scalableRef"];
        buffer["metadata"]["namespace"] == *workload.namespace
            && reference["kind"] == *workload.kind
            && reference["name"] == *workload.name
    })
}

impl Templates for State {
    fn pod_template(&self, namespace: &str, name: &str) -> Option<Arc<PodTemplate>> {
        let object = self.kept_object("PodTemplate", namespace, name)?;
        PodTemplate::deserialize(object).ok().map(Arc::new)
    }

    fn workload(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> Option<(PodTemplateSpec, Option<i32>)> {
        let spec = &self.kept_object(kind, namespace, name)?["spec"];
        let template = PodTemplateSpec::deserialize(&spec["template"]).ok()?;
        let replicas = spec["replicas"].as_i64();
        Some((template, replicas.and_then(|count| count.try_into().ok())))
    }
}

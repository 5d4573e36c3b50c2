//! Keeps what objects say of single pods beside the engine's model: pending resizes, why bound pods do not run, images and addresses.
//!
//! Facts are looked for in the text of an object first, so that few objects are parsed twice.

use std::collections::{BTreeMap, BTreeSet};

use mullion_api::labels::{self, PLACED_BY_IMAGE, RUNS_ON};
use mullion_engine::{
    images::{ImageTable, Runs},
    model::{PodSpec, RESIZE_PENDING},
};
use serde_json::Value;

use super::{
    images::{self, ImagePlatforms},
    start::{self, Start},
};

/// The namespace and the name of a pod.
type PodKey = (String, String);

/// The facts about the pods of a state. A case has none.
#[derive(Default)]
pub(super) struct PodFacts {
    /// The reasons why pods with a pending resize are not resized.
    resizes: BTreeMap<PodKey, String>,
    /// What is said of bound pods that do not run or are not ready.
    starts: BTreeMap<PodKey, Start>,
    /// The warnings about pods.
    warnings: BTreeMap<PodKey, Vec<start::Event>>,
    /// What the images run on, as placement by image recorded it on pods, or as the user says there.
    images: BTreeMap<PodKey, Vec<ImagePlatforms>>,
    /// The Windows pods that have an address.
    pub(super) addressed: BTreeSet<PodKey>,
    /// Whether placement by image has placed a pod.
    placed_by_image: bool,
}

impl PodFacts {
    /// Records the facts in the text of an object, which may be of any kind.
    ///
    /// # Errors
    /// The text is not JSON.
    pub(super) fn note(&mut self, text: &str) -> Result<(), serde_json::Error> {
        if text.contains(RESIZE_PENDING.0) {
            self.note_resize(&serde_json::from_str(text)?);
        }
        // `NotReady"` ends the reasons that kubelets give to the condition Ready.
        let signs = [
            "\"waiting\"",
            "\"Pending\"",
            "\"Failed\"",
            "NotReady\"",
            "\"readinessGates\"",
            "\"ready\":false",
            "\"ready\": false",
        ];
        let may_wait = signs.iter().any(|sign| text.contains(sign));
        // A condition Ready that is False, in any order of its fields: kube-controller-manager sets nothing else where a kubelet is lost.
        let is_unready = || {
            let has = |sign| text.contains(sign);
            has("\"Ready\"") && (has("\"status\":\"False\"") || has("\"status\": \"False\""))
        };
        if (may_wait || is_unready()) && text.contains("\"nodeName\"") {
            self.note_start(&serde_json::from_str(text)?);
        }
        if text.contains(PLACED_BY_IMAGE) || text.contains(RUNS_ON) {
            self.note_images(&serde_json::from_str(text)?);
        }
        if text.contains(labels::PRIVATE_IPV4) {
            self.note_address(&serde_json::from_str(text)?);
        }
        Ok(())
    }

    /// Records why a pod's pending resize is not carried out.
    fn note_resize(&mut self, pod: &Value) {
        let conditions = pod["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let pending = conditions.find(|condition| condition["type"] == RESIZE_PENDING.0);
        let words = pending.map(|pending| [&pending["reason"], &pending["message"]]);
        let words = words.into_iter().flatten().filter_map(Value::as_str);
        let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
        if !words.is_empty() {
            self.resizes.insert(key_in(pod), words.join(": "));
        }
    }

    /// Records why a bound pod does not run or is not ready.
    fn note_start(&mut self, pod: &Value) {
        if let Some(start) = Start::of(pod) {
            self.starts.insert(key_in(pod), start);
        }
    }

    /// Records what an Event warns about.
    pub(super) fn note_event(&mut self, event: &Value) {
        if let Some((pod, warning)) = start::warning(event) {
            self.warnings.entry(pod).or_default().push(warning);
        }
    }

    /// Records what placement by image wrote to a pod, or else what the user says there of its images.
    pub(super) fn note_images(&mut self, pod: &Value) {
        let annotations = &pod["metadata"]["annotations"];
        let words = match annotations[PLACED_BY_IMAGE].as_str() {
            Some(report) => {
                self.placed_by_image = true;
                images::of_annotation(report)
            }
            None => images::declared(pod),
        };
        if !words.is_empty() {
            self.images.insert(key_in(pod), words);
        }
    }

    /// Records that a pod has an address.
    fn note_address(&mut self, pod: &Value) {
        if pod["metadata"]["annotations"][labels::PRIVATE_IPV4].is_string() {
            self.addressed.insert(key_in(pod));
        }
    }

    /// Returns why a pod's pending resize is not carried out; `None` if there is none.
    pub(super) fn resize_of(&self, pod: &PodSpec) -> Option<&String> {
        self.resizes.get(&key_of(pod))
    }

    /// Returns what is said of a pod that is bound and does not run or is not ready; `None` for other pods.
    pub(super) fn start_of(&self, pod: &PodSpec) -> Option<Start> {
        let key = key_of(pod);
        let start = self.starts.get(&key)?.clone();
        let warnings = self.warnings.get(&key);
        Some(start.with_events(warnings.into_iter().flatten()))
    }

    /// Returns on which platforms all images of a pod run, if more than their names says so.
    pub(super) fn recorded_runs(&self, pod: &PodSpec, table: &ImageTable) -> Option<Runs> {
        images::common(self.images.get(&key_of(pod))?, table)
    }

    /// Returns what is known about all images of a pod.
    pub(super) fn all_images_of(&self, pod: &PodSpec, table: &ImageTable) -> Vec<ImagePlatforms> {
        let words = self.images.get(&key_of(pod)).cloned();
        words.unwrap_or_else(|| images::all_guessed(pod, table))
    }

    /// Returns what is known about a pod's images, if that matters.
    pub(super) fn images_of(&self, pod: &PodSpec, table: &ImageTable) -> Vec<ImagePlatforms> {
        let words = self.images.get(&key_of(pod)).cloned();
        words.unwrap_or_else(|| images::guessed(pod, table))
    }

    /// Returns whether the cluster has placed any pod by its images.
    pub(super) fn is_placed_by_image(&self) -> bool {
        self.placed_by_image
    }
}

fn key_of(pod: &PodSpec) -> PodKey {
    (pod.template.namespace.clone(), pod.name.clone())
}

fn key_in(pod: &Value) -> PodKey {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = &pod["metadata"];
    (text(&metadata["namespace"]), text(&metadata["name"]))
}

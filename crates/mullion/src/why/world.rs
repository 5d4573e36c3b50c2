//! Puts the objects of a manifest into the cluster that is asked, as `kubectl apply` would.
//!
//! An API server says what becomes of each object: the cluster's own, which stores nothing (dry run), or one in this process. The latter is
//! used if admission of the manifest's pods needs other objects of the manifest; it gets the cluster's classes.

use kube::Client;
use mullion_engine::model::PodSpec;
use serde_json::{Value, json, value::RawValue};

use super::{
    admission::{self, Warnings},
    buffers, kinds,
    kinds::KINDS,
    manifest::{self, Document, Place},
    object::fault,
    placement::Placement,
    pod_owner::PodOwner,
    refused::Refusals,
    source::{self, Source},
    state::State,
    strict,
    template::{self, Prospect, put},
    unused_notes, writes,
};
use crate::{failure::Failure, out, plan::quotas::Quotas};

/// A pod of a manifest, as it would be created.
#[derive(Clone)]
pub(crate) struct PlannedPod {
    /// The pod, as in `pod shop/iis`, or the workload whose pod it would be.
    pub(crate) named: String,
    pub(crate) pod: PodSpec,
    /// The DaemonSet, if the pod belongs to one, which has a pod on every eligible node.
    pub(crate) daemon: Option<String>,
    /// The object that creates the pod.
    pub(crate) owner: PodOwner,
    /// The number of such pods.
    pub(crate) replicas: u64,
    /// The field of the workload because of which there are none, as in `spec.suspend is true`.
    pub(crate) none_by: Option<&'static str>,
    /// The pod as an API server would store it.
    pub(crate) admitted: Value,
    /// The claims that are created for this pod, as they are in the state.
    pub(crate) claims: Vec<Value>,
    /// Whether a pod of that name exists.
    pub(super) is_taken: bool,
}

impl PlannedPod {
    /// Returns the object that creates the pod, as in `Deployment shop/web`.
    pub(crate) fn workload(&self) -> String {
        let PodOwner {
            kind,
            namespace,
            name,
        } = &self.owner;
        format!("{kind} {namespace}/{name}")
    }
}

/// The objects of a manifest: those that create pods, with the pods, and all others.
struct SortedManifest {
    prospects: Vec<(Place, Prospect, Value)>,
    others: Vec<Document>,
}

impl SortedManifest {
    fn of(documents: Vec<Document>, namespace: Option<&str>) -> Self {
        let mut sorted = SortedManifest {
            prospects: Vec::new(),
            others: Vec::new(),
        };
        for document in documents {
            match template::prospect(&document.object, namespace) {
                Some(prospect) => {
                    sorted
                        .prospects
                        .push((document.place, prospect, document.object));
                }
                None => sorted.others.push(document),
            }
        }
        sorted
    }
}

/// Puts the objects of a manifest into the cluster; returns every pod, and one pod of every workload. `names` selects some of them, `shown`
/// is the manifest's name in messages, and `placement` places pods that no cluster admits.
///
/// # Errors
/// The manifest has no pod of that name, or the API server refuses an object; the error repeats its message.
pub(super) async fn apply(
    source: &mut Source,
    shown: &str,
    documents: Vec<Document>,
    namespace: Option<&str>,
    names: &[String],
    placement: &Placement,
) -> Result<Vec<PlannedPod>, Failure> {
    let mut refusals = Refusals::default();
    let documents = manifest::whole(documents, &mut refusals);
    let mut sorted = SortedManifest::of(documents, namespace);
    if sorted.prospects.is_empty() {
        unused_notes::refuse_misspelt(&sorted.others, &mut refusals);
        // These say more than that there is no pod.
        std::mem::take(&mut refusals).result()?;
    }
    unused_notes::note_documents(&sorted.others, namespace, source.state.keeps.templates);
    let prospects = &mut sorted.prospects;
    let is_of = |object: &Value, name: &String| object["metadata"]["name"] == **name;
    // Only the pods are selected; all other objects of the manifest count, as if it were applied.
    prospects.retain(|(_, prospect, object)| {
        let is_named = |name| is_of(object, name) || is_of(&prospect.pod, name);
        names.is_empty() || names.iter().any(is_named)
    });
    if prospects.is_empty() {
        return Err(Failure::input(if names.is_empty() {
            "there is no pod and no workload with pods".to_owned()
        } else {
            format!(
                "there is no pod and no workload named {}",
                names.join(" or ")
            )
        })
        .about(shown));
    }
    sorted.others = strict::check(source, sorted.others, namespace, &mut refusals).await?;
    let places = sorted.prospects.iter().map(|(place, ..)| place.clone());
    let places: Vec<Place> = places.collect();
    let planned = put_in(source, sorted, namespace, placement, refusals).await?;
    let quotas = Quotas::of(&source.state);
    let mut refusals = Refusals::default();
    for (own, place) in planned.iter().zip(&places) {
        let asked = quotas.asked(&own.admitted).map_err(|why| {
            let name = &own.pod.name;
            Failure::input(format!("pods {name:?} is forbidden: {why}"))
        });
        refusals.note(place, asked)?;
    }
    refusals.result()?;
    for own in &planned {
        if let Some(field) = own.none_by {
            out::note(&format!(
                "{} makes no pods: {field}; the answer is for one that it would make otherwise",
                own.workload()
            ));
        }
    }
    for own in planned
        .iter()
        .filter(|own| own.owner.kind == "Pod" && own.is_taken)
    {
        let PodOwner {
            namespace, name, ..
        } = &own.owner;
        out::note(&format!(
            "pod {namespace}/{name} exists: the answer is for another one like it; `mullion why pod {name} -n {namespace}` asks about the one that is there"
        ));
    }
    Ok(planned)
}

/// Puts the objects of a manifest, which need not include pods, into the cluster; returns every pod, and one pod of every workload.
/// `placement` places pods that no cluster admits, and `refusals` has those of other objects, which are reported together with these.
///
/// # Errors
/// The API server refuses objects; the error repeats its messages.
pub(crate) async fn apply_all(
    source: &mut Source,
    documents: Vec<Document>,
    namespace: Option<&str>,
    placement: &Placement,
    mut refusals: Refusals,
) -> Result<Vec<PlannedPod>, Failure> {
    let sorted = SortedManifest::of(documents, namespace);
    if sorted.prospects.is_empty() && !sorted.others.iter().any(Document::is_known) {
        unused_notes::refuse_misspelt(&sorted.others, &mut refusals);
        std::mem::take(&mut refusals).result()?;
    }
    unused_notes::note_documents(&sorted.others, namespace, source.state.keeps.templates);
    put_in(source, sorted, namespace, placement, refusals).await
}

async fn put_in(
    source: &mut Source,
    sorted: SortedManifest,
    namespace: Option<&str>,
    placement: &Placement,
    mut refusals: Refusals,
) -> Result<Vec<PlannedPod>, Failure> {
    let SortedManifest { prospects, others } = sorted;
    // What the manifest brings is not in the cluster yet, so its API server cannot admit the pods with it.
    let needed = others.iter().find(|other| admits_pods(&other.object));
    if let Some(needed) = needed.filter(|_| !source.offline) {
        source.leave().await?;
        let unasked = if source.state.keeps.quotas {
            "webhooks and policies"
        } else {
            "webhooks, policies and quotas"
        };
        out::note(&format!(
            "the cluster's own {unasked} are not asked: {} would have to be there first",
            needed.place
        ));
    }
    // In the order of the table and not of the file, as an object may need another that comes later in the
    // file.
    for (kind, ..) in KINDS {
        // Without buffers a PodTemplate changes nothing, so nobody needs to admit it.
        if kind == "PodTemplate" && !source.state.keeps.templates {
            continue;
        }
        for other in others.iter().filter(|other| other.object["kind"] == kind) {
            let added = add(source, &other.object, namespace).await;
            refusals.note(&other.place, added)?;
        }
    }
    let mut warnings = Warnings::default();
    let planned = admit_all(source, prospects, placement, &mut warnings, &mut refusals).await;
    // Also where a later object is refused.
    warnings.print();
    let planned = planned?;
    refusals.result()?;
    if source.offline {
        placement.say(&source.state);
    }
    Ok(planned)
}

/// Has the pods of a manifest admitted, and the workloads checked that create them. Returns those that no server refuses.
async fn admit_all(
    source: &mut Source,
    prospects: Vec<(Place, Prospect, Value)>,
    placement: &Placement,
    warnings: &mut Warnings,
    refusals: &mut Refusals,
) -> Result<Vec<PlannedPod>, Failure> {
    let mut planned = Vec::new();
    for (place, prospect, object) in prospects {
        // The workload first, because its server says all that is wrong with it, its template included.
        let taken = check_workload(source, &object, &prospect.pod_owner).await;
        if refusals.note(&place, taken)?.is_none() {
            continue;
        }
        let admitted = admission::admit(source, prospect, placement, warnings).await;
        let Some(mut own) = refusals.note(&place, admitted)? else {
            continue;
        };
        if is_paused(&object) && !source.state.pods.iter().any(|pod| own.owner.owns(pod)) {
            own.replicas = 0;
            own.none_by = Some("spec.paused is true");
        }
        if own.daemon.is_some() {
            keep_daemon(&mut source.state, object, &own)?;
        } else if buffers::name(&source.state, &own.owner) {
            keep_template(&mut source.state, object, &own)?;
        }
        planned.push(own);
    }
    Ok(planned)
}

/// Has the pod admitted that a workload of the cluster would create, which its API server has taken before. Returns `None` if the object
/// creates no pods.
///
/// # Errors
/// The API server refuses the pod; the error repeats its message.
pub(crate) async fn planned_for(
    source: &mut Source,
    workload: &Value,
    placement: &Placement,
) -> Result<Option<PlannedPod>, Failure> {
    let Some(prospect) = template::prospect(workload, None) else {
        return Ok(None);
    };
    let mut warnings = Warnings::default();
    let admitted = admission::admit(source, prospect, placement, &mut warnings).await;
    warnings.print();
    admitted.map(Some)
}

/// Returns whether an object is a Deployment that makes no ReplicaSet of its template (kube-controller-manager: a paused one only scales
/// those that it has).
fn is_paused(object: &Value) -> bool {
    object["kind"] == "Deployment" && object["spec"]["paused"] == true
}

/// Has an API server say whether it takes a workload as it is written: a misspelt field, or a selector of other pods, would change the answer.
async fn check_workload(source: &Source, object: &Value, owner: &PodOwner) -> Result<(), Failure> {
    let Some(plural) = template::workload_plural(&owner.kind) else {
        return Ok(());
    };
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let (root, home) = (api_root(version), &owner.namespace);
    let path = format!("{root}/{version}/namespaces/{home}/{plural}");
    let mut object = object.clone();
    put(&mut object["metadata"], "namespace", json!(home));
    if source.offline {
        source::make_home(&source.client, home, "default").await?;
    }
    // What a server warns of in a template, it warns of in the pod, too.
    writes::would_create(&source.client, &path, &object)
        .await
        .map(drop)
}

/// Returns the start of the paths of an API version.
pub(super) fn api_root(version: &str) -> &'static str {
    match version {
        "v1" => "/api",
        _ => "/apis",
    }
}

/// Stores a DaemonSet with its admitted pod as the template, because new nodes will get such a pod.
fn keep_daemon(state: &mut State, mut object: Value, own: &PlannedPod) -> Result<(), Failure> {
    put(
        &mut object["metadata"],
        "namespace",
        json!(own.owner.namespace),
    );
    let spec = own.admitted["spec"].clone();
    put(&mut object["spec"]["template"], "spec", spec);
    take(state, &object)
}

/// Stores a workload as it is written, because chunks of a CapacityBuffer are made from its template and not from an admitted pod.
fn keep_template(state: &mut State, mut object: Value, own: &PlannedPod) -> Result<(), Failure> {
    put(
        &mut object["metadata"],
        "namespace",
        json!(own.owner.namespace),
    );
    take(state, &object)
}

/// Returns the namespace of an object of a namespaced kind.
pub(super) fn home_of<'a>(object: &'a Value, namespace: Option<&'a str>) -> &'a str {
    let own = object["metadata"]["namespace"].as_str();
    own.or(namespace).unwrap_or("default")
}

/// Returns which owner of pods an object of a manifest is; `namespace` is that of objects that name none.
pub(crate) fn owner_of(object: &Value, namespace: Option<&str>) -> PodOwner {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    PodOwner {
        kind: text(&object["kind"]),
        namespace: home_of(object, namespace).to_owned(),
        name: text(&object["metadata"]["name"]),
    }
}

fn admits_pods(object: &Value) -> bool {
    let mut kinds = KINDS.iter();
    kinds.any(|(kind, _, _, admits)| *admits && object["kind"] == *kind)
}

/// Puts an object that creates no pods into the cluster; returns the object as an API server answered it, if one was asked.
pub(super) async fn add(
    source: &mut Source,
    object: &Value,
    namespace: Option<&str>,
) -> Result<Option<Value>, Failure> {
    let kind = object["kind"].as_str().unwrap_or_default();
    let Some((_, plural, is_namespaced, _)) = KINDS.iter().find(|(own, ..)| *own == kind) else {
        return Ok(None);
    };
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    if name.is_empty() {
        return Err(Failure::input("an object without a name"));
    }
    let mut object = object.clone();
    let mut homed = String::new();
    if *is_namespaced {
        let home = home_of(&object, namespace).to_owned();
        put(&mut object["metadata"], "namespace", json!(home));
        if source.offline && kinds::taken_as_written(kind).is_none() {
            source::make_home(&source.client, &home, "default").await?;
        }
        homed = format!("/namespaces/{home}");
    }
    // The server in this process does not know what the cluster's controllers have made of the object.
    if source.state.is_settled(&object) {
        return Ok(None);
    }
    if kinds::taken_as_written(kind).is_some() {
        return take_as_written(&mut source.state, object).map(|()| None);
    }
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let root = api_root(version);
    let keeps = if source.offline { "" } else { "&dryRun=All" };
    let path = format!(
        "{root}/{version}{homed}/{plural}/{name}?fieldManager=mullion-why&force=true&fieldValidation=Strict{keeps}"
    );
    let mut made = writes::apply(&source.client, &path, &object).await?;
    // The server in this process has no status of the object, so it is taken from the state.
    let status = source.state.status_of(&object).filter(|_| source.offline);
    if let Some(status) = status {
        put(&mut made, "status", status.clone());
    }
    if kind == "PersistentVolume" && made.pointer("/spec/claimRef/uid").is_none() {
        // A controller would set this phase at once, but none runs here.
        put(&mut made["status"], "phase", json!("Available"));
    }
    take(&mut source.state, &made)?;
    Ok(Some(made))
}

fn take_as_written(state: &mut State, mut object: Value) -> Result<(), Failure> {
    if object["kind"] == "Node" {
        return state.set_node(&object).map_err(refuse);
    }
    if object["kind"] == kinds::QUOTA {
        // What is used is counted in the cluster; a manifest cannot set it.
        put(&mut object, "status", Value::Null);
    }
    if object["status"].is_null() {
        let status = match state.status_of(&object) {
            Some(there) => there.clone(),
            None if object["kind"] == "NodePool" => ready(),
            None => Value::Null,
        };
        put(&mut object, "status", status);
    }
    take(state, &object)
}

/// Returns the status of a pool whose class is resolved; no controller sets it here.
fn ready() -> Value {
    json!({"conditions": [{
        "type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "1970-01-01T00:00:00Z",
    }]})
}

pub(crate) fn take(state: &mut State, object: &Value) -> Result<(), Failure> {
    let raw = RawValue::from_string(object.to_string()).map_err(Failure::run)?;
    state.add(&raw, "").map_err(refuse)
}

fn refuse(error: serde_json::Error) -> Failure {
    Failure::input(fault(&error))
}

impl Source {
    /// Replaces the cluster's API server by one in this process, which gets the classes of the cluster.
    async fn leave(&mut self) -> Result<(), Failure> {
        self.client = self.beside().await?;
        self.offline = true;
        Ok(())
    }

    /// Returns a client of an API server in this process that has the classes of the cluster.
    pub(super) async fn beside(&mut self) -> Result<Client, Failure> {
        if let Some(there) = &self.beside {
            return Ok(there.clone());
        }
        source::add_classes(&self.client, &mut self.state).await?;
        let started = source::offline(&self.state).await?;
        self.beside = Some(started.clone());
        Ok(started)
    }
}

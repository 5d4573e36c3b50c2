//! Reads the input of a plan: a cluster (a running one, one from a list of objects, or an empty one) and the manifests to be applied to it.
//!
//! [`crate::why`] reads and admits all of them. This module then turns a workload into as many pods as it has replicas, which replace the
//! pods it has in the cluster, and binds the pods of DaemonSets to the existing nodes.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use mullion_engine::model::PodSpec;
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::{Value, json};

use super::{
    options::PlanArgs,
    quotas::{self, Quotas, RefusedPods},
    refusals::some_of,
    replicas,
};
use crate::{
    failure::Failure,
    up,
    why::{
        answer,
        daemon::{self, Daemon},
        kinds,
        manifest::{self, Document, Place},
        placement::{Placement, Switch},
        pod_owner::PodOwner,
        refused::Refusals,
        rules::RuleFlags,
        source::{self, Source},
        state::{Keeps, State},
        strict,
        world::{self, PlannedPod},
    },
};

/// The NodePools and EC2NodeClasses that `mullion up` creates at the start.
const DEFAULT_POOLS: &str = include_str!("../up/default-pools.yaml");

/// The cluster, and the pods that the manifests would create.
pub(super) struct Input {
    pub(super) source: Source,
    pub(super) placement: Placement,
    /// The pods that do not exist yet, in the order in which they are created. Quotas may refuse some of them.
    pub(super) coming: Vec<PodSpec>,
    /// The pods in `coming` as an API server would store them, by their keys. It is empty if there are no quotas.
    pub(super) bills: FxHashMap<String, Arc<Value>>,
    /// The existing pods that are replaced or removed, in full. It is empty if there are no quotas.
    freed: Vec<Value>,
    /// The pods that are created for DaemonSets on the existing nodes. It is empty if there are no quotas.
    daemons: Vec<DaemonPod>,
    /// Remarks for the user about how the plan was made.
    remarks: Vec<String>,
    /// The keys of the pods in `coming` and of pending pods.
    pub(super) keys: FxHashSet<String>,
    /// The workloads of the manifests that have no pods.
    pub(super) idle: Vec<PlannedPod>,
    /// The NodePools of the what-if flags.
    pub(super) added_pools: Vec<String>,
    /// The Jobs of the manifests, as they are written.
    pub(super) jobs: Vec<(PodOwner, Value)>,
}

/// A pod of a DaemonSet that is created, or would be if a quota had room for it.
struct DaemonPod {
    set: PodOwner,
    /// `namespace/name`.
    name: String,
    /// The pod as an API server would store it, or why a quota refuses it.
    outcome: Result<Arc<Value>, String>,
}

impl Input {
    /// Reads everything that the flags name.
    ///
    /// # Errors
    /// Something cannot be read, or the API server refuses an object; the error repeats its message.
    pub(super) async fn read(args: &PlanArgs, keeps_whole: bool) -> Result<Self, Failure> {
        let rules = RuleFlags {
            config: args.scheduler_config.clone(),
            ignore_pod_os: false,
        };
        // Files are read before the cluster is asked, so that a misspelt name is reported even if there is no cluster.
        let documents = manifest::documents(&args.filename)?;
        let documents = manifest::last_of_each(documents, args.namespace.as_deref());
        let workloads = args.what_if.scaled(args.namespace.as_deref());
        let keeps = Keeps {
            whole: keeps_whole,
            quotas: !args.filename.is_empty() || args.what_if.makes_pods(),
            pods: manifest::have(&documents, kinds::QUOTA),
            templates: manifest::have(&documents, kinds::BUFFER),
            workloads,
        };
        let empty = || Ok::<_, Failure>(State::new(rules.empty_cluster()?).keeping(keeps.clone()));
        let table = Arc::new(up::images::table(args.images.as_deref())?);
        let source = match &args.state {
            Some(path) => source::file(path, empty()?).await?,
            None if args.offline => source::with_local_server(empty()?).await?,
            None => {
                let (kubeconfig, context) = (args.kubeconfig.clone(), args.context.clone());
                let live = source::live(kubeconfig, context, &rules, keeps.clone());
                live.await.map_err(|failure| {
                    if args.filename.is_empty() {
                        failure
                    } else {
                        failure.hint(
                        "--offline plans for the files alone; --state FILE asks a list of objects",
                    )
                    }
                })?
            }
        };
        // Without a cluster nothing says that pods are placed by their images, unless the user does.
        let as_written = args.offline && args.images.is_none();
        let switch = args.place_by_image.or(as_written.then_some(Switch::Off));
        let mut input = Input {
            source,
            placement: Placement::new(switch, args.images.is_some(), table),
            coming: Vec::new(),
            bills: FxHashMap::default(),
            freed: Vec::new(),
            daemons: Vec::new(),
            remarks: Vec::new(),
            keys: FxHashSet::default(),
            idle: Vec::new(),
            added_pools: Vec::new(),
            jobs: Vec::new(),
        };
        if args.default_pools {
            input.add_default_pools(args.namespace.as_deref()).await?;
        }
        input.apply(documents, args.namespace.as_deref()).await?;
        Ok(input)
    }

    /// Applies manifests to the cluster.
    ///
    /// # Errors
    /// The API server refuses an object; the error repeats its message.
    pub(super) async fn apply(
        &mut self,
        documents: Vec<Document>,
        namespace: Option<&str>,
    ) -> Result<(), Failure> {
        let mut refusals = Refusals::default();
        let documents = manifest::whole(documents, &mut refusals);
        let documents = strict::check(&self.source, documents, namespace, &mut refusals).await?;
        let objects = documents.iter().map(|document| &document.object);
        let jobs = objects.filter(|object| object["kind"] == "Job");
        let jobs = jobs.map(|job| (world::owner_of(job, namespace), job.clone()));
        self.jobs.extend(jobs);
        let planned = world::apply_all(
            &mut self.source,
            documents,
            namespace,
            &self.placement,
            refusals,
        )
        .await?;
        // DaemonSets come first, because their pods take room on the nodes before other pods are placed.
        for own in planned.iter().filter(|own| own.daemon.is_some()) {
            self.place_daemon(own)?;
        }
        for own in planned.iter().filter(|own| own.daemon.is_none()) {
            self.replace(own)?;
        }
        Ok(())
    }

    async fn add_default_pools(&mut self, namespace: Option<&str>) -> Result<(), Failure> {
        let (_, objects) = manifest::objects(DEFAULT_POOLS, "the default pools")?;
        let mut documents: Vec<Document> = objects
            .into_iter()
            .map(|found| Document {
                place: Place::of("the default pools", "", ""),
                object: found.object,
            })
            .collect();
        let named = |document: &Document| {
            let name = document.object["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            let kind = document.object["kind"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            (kind, name)
        };
        let state = &self.source.state;
        documents.retain(|document| {
            let (kind, name) = named(document);
            state.kept_object(&kind, "", &name).is_none()
        });
        if state.address_settings().is_none() {
            documents.push(Document {
                place: Place::of("the default pools", "", ""),
                object: json!({
                    "apiVersion": "v1", "kind": "ConfigMap",
                    "metadata": {"name": "amazon-vpc-cni", "namespace": "kube-system"},
                    "data": {"enable-windows-ipam": "true"},
                }),
            });
        }
        world::apply_all(
            &mut self.source,
            documents,
            namespace,
            &self.placement,
            Refusals::default(),
        )
        .await
        .map(drop)
    }

    /// Replaces the pods that a workload has in the cluster by as many new pods as it has replicas.
    pub(super) fn replace(&mut self, planned: &PlannedPod) -> Result<(), Failure> {
        let gone = self.remove(|pod| planned.owner.owns(pod) && !pod.finished);
        for pod in gone {
            self.keys.remove(&pod.key());
        }
        self.idle.retain(|own| own.owner != planned.owner);
        if planned.replicas == 0 {
            self.idle.push(planned.clone());
        }
        let copies = replicas::of(planned, &mut self.source.state, &mut self.keys)?;
        if self.source.state.has(kinds::QUOTA) {
            let bill = Arc::new(planned.admitted.clone());
            let bills = copies.iter().map(|pod| (pod.key(), bill.clone()));
            self.bills.extend(bills);
        }
        self.coming.extend(copies);
        Ok(())
    }

    /// Removes the pods from the cluster for which `goes` returns true; quotas get back what they use.
    pub(super) fn remove(&mut self, goes: impl FnMut(&PodSpec) -> bool) -> Vec<PodSpec> {
        let state = &mut self.source.state;
        let gone = state.take_pods(goes);
        if state.has(kinds::QUOTA) {
            let whole = gone
                .iter()
                .filter_map(|pod| state.kept_object("Pod", &pod.template.namespace, &pod.name));
            self.freed.extend(whole.cloned());
        }
        gone
    }

    /// Returns a pod as an API server stores it; `None` if no quota counts it.
    pub(super) fn bill_of(&self, pod: &PodSpec) -> Option<Arc<Value>> {
        let state = &self.source.state;
        if !state.has(kinds::QUOTA) {
            return None;
        }
        let there = || state.kept_object("Pod", &pod.template.namespace, &pod.name);
        let coming = self.bills.get(&pod.key()).cloned();
        coming.or_else(|| there().cloned().map(Arc::new))
    }

    /// Returns the quotas of the cluster once the pods that go are gone and the pods of the DaemonSets are there.
    fn quotas(&self) -> Quotas {
        let mut quotas = Quotas::of(&self.source.state);
        for pod in &self.freed {
            quotas.give_back(pod);
        }
        for pod in self
            .daemons
            .iter()
            .filter_map(|own| own.outcome.as_ref().ok())
        {
            // The quotas had room for the pod when it was added.
            let _ = quotas.take(pod);
        }
        quotas
    }

    /// Separates the pods that do not exist yet from those that quotas refuse.
    pub(super) fn admitted(&self) -> (Cow<'_, [PodSpec]>, Vec<RefusedPods>) {
        let (coming, mut refused) = self.quotas().admit(&self.coming, &self.bills);
        for DaemonPod { name, outcome, .. } in &self.daemons {
            if let Err(reason) = outcome {
                quotas::add_refused(&mut refused, name.clone(), reason);
            }
        }
        (coming, refused)
    }

    /// Returns the remarks about how the plan was made.
    pub(super) fn remarks(&self) -> Vec<String> {
        let mut by_field: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for own in &self.idle {
            if let Some(field) = own.none_by {
                by_field.entry(field).or_default().push(own.workload());
            }
        }
        let idle = by_field.into_iter().map(|(field, names)| {
            let makes = if names.len() == 1 { "makes" } else { "make" };
            format!("{} {makes} no pods: {field}", some_of(&names))
        });
        self.remarks.iter().cloned().chain(idle).collect()
    }

    /// Binds a DaemonSet's pods to the existing nodes that have room for them.
    fn place_daemon(&mut self, planned: &PlannedPod) -> Result<(), Failure> {
        self.remove(|pod| planned.owner.owns(pod));
        self.daemons.retain(|own| own.set != planned.owner);
        let mut quotas = self.quotas();
        let state = &mut self.source.state;
        if state.cluster.node_count() == 0 {
            return Ok(());
        }
        let asked = answer::ask(&mut state.cluster, &planned.pod, false);
        let asked = asked.map_err(|error| Failure::input(error).about(&planned.named))?;
        let record = answer::record(&state.cluster, &asked, str::to_owned);
        let set = Daemon::of(&record);
        let bill = Arc::new(planned.admitted.clone());
        let named = |node: &str| format!("{}-{node}", planned.owner.name);
        let mut has_room = |node: &str| {
            if quotas.is_empty() {
                return true;
            }
            let outcome = quotas.take(&bill);
            let outcome = outcome
                .map(|()| bill.clone())
                .map_err(|why| why.to_string());
            let has_room = outcome.is_ok();
            self.daemons.push(DaemonPod {
                set: planned.owner.clone(),
                name: format!("{}/{}", planned.owner.namespace, named(node)),
                outcome,
            });
            has_room
        };
        for node in &set.runs_on {
            if !has_room(node) {
                continue;
            }
            let mut pod = daemon::on(&planned.pod, node);
            pod.name = named(node);
            pod.node_name = Some(node.clone());
            let placed = state.cluster.bind(&pod, node);
            placed.map_err(|error| Failure::input(error).about(&planned.named))?;
            state.pods.push(pod);
        }
        let waiting = set.waits_on.iter().filter(|node| has_room(node));
        if let waiting @ 1.. = waiting.count() {
            self.remarks.push(format!(
                "DaemonSet {}/{} has no room on {waiting} of the {} nodes it is meant for",
                planned.owner.namespace,
                planned.owner.name,
                waiting + set.runs_on.len(),
            ));
        }
        Ok(())
    }
}

/// Reads manifests in which every object must be of one of these kinds.
///
/// # Errors
/// The file cannot be read, or it has an object of another kind.
pub(super) fn documents_of(
    flag: &str,
    paths: &[std::path::PathBuf],
    namespace: Option<&str>,
    kinds: &[&str],
) -> Result<Vec<Document>, Failure> {
    let documents = manifest::last_of_each(manifest::documents(paths)?, namespace);
    let is_other = |document: &&Document| !matches!(&document.object["kind"], Value::String(kind) if kinds.contains(&kind.as_str()));
    match documents.iter().find(is_other) {
        None => Ok(documents),
        Some(other) => Err(Failure::input(format!(
            "{}: {flag} takes {} only",
            other.place,
            kinds.join(" and ")
        ))
        .hint("-f FILE takes everything else")),
    }
}

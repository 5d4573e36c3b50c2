//! Reads the input of a plan: a cluster (a running one, one from a list of objects, or an empty one) and the manifests to be applied to it.
//!
//! [`crate::why`] reads and admits all of them. This module then turns a workload into as many pods as it has replicas, which replace the
//! pods it has in the cluster, and binds the pods of DaemonSets to the existing nodes.

use std::sync::Arc;

use mullion_engine::model::PodSpec;
use rustc_hash::FxHashSet;
use serde_json::{Value, json};

use super::{options::PlanArgs, replicas};
use crate::{
    failure::Failure,
    up,
    why::{
        answer,
        daemon::{self, Daemon},
        manifest::{self, Document},
        placement::{Placement, Switch},
        pod_owner::PodOwner,
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
    placement: Placement,
    /// The pods that do not exist yet.
    pub(super) coming: Vec<PodSpec>,
    /// Remarks for the user about how the plan was made.
    pub(super) remarks: Vec<String>,
    /// The keys of the pods in `coming` and of pending pods.
    pub(super) keys: FxHashSet<String>,
    /// A model pod for each workload of the manifests that has zero replicas.
    pub(super) idle: Vec<(PodOwner, PodSpec)>,
    /// The NodePools of the what-if flags.
    pub(super) added_pools: Vec<String>,
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
        let keeps = Keeps {
            whole: keeps_whole,
            templates: manifest::have_buffers(&documents),
        };
        let empty = || Ok::<_, Failure>(State::new(rules.empty_cluster()?).keeping(keeps));
        let table = Arc::new(up::images::table(args.images.as_deref())?);
        let source = match &args.state {
            Some(path) => source::file(path, empty()?).await?,
            None if args.offline => source::with_local_server(empty()?).await?,
            None => {
                let live =
                    source::live(args.kubeconfig.clone(), args.context.clone(), &rules, keeps);
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
            remarks: Vec::new(),
            keys: FxHashSet::default(),
            idle: Vec::new(),
            added_pools: Vec::new(),
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
        strict::check(&self.source, &documents, namespace).await?;
        let planned =
            world::apply_all(&mut self.source, documents, namespace, &self.placement).await?;
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
                place: "the default pools".to_owned(),
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
                place: "the default pools".to_owned(),
                object: json!({
                    "apiVersion": "v1", "kind": "ConfigMap",
                    "metadata": {"name": "amazon-vpc-cni", "namespace": "kube-system"},
                    "data": {"enable-windows-ipam": "true"},
                }),
            });
        }
        world::apply_all(&mut self.source, documents, namespace, &self.placement)
            .await
            .map(drop)
    }

    /// Replaces the pods that a workload has in the cluster by as many new pods as it has replicas.
    fn replace(&mut self, planned: &PlannedPod) -> Result<(), Failure> {
        let gone = self
            .source
            .state
            .take_pods(|pod| planned.owner.owns(pod) && !pod.finished);
        for pod in gone {
            self.keys.remove(&pod.key());
        }
        if planned.replicas == 0 {
            let model = (planned.owner.clone(), planned.pod.clone());
            self.idle.push(model);
        }
        let copies = replicas::of(planned, &mut self.source.state, &mut self.keys)?;
        self.coming.extend(copies);
        Ok(())
    }

    /// Binds a DaemonSet's pods to the existing nodes that have room for them.
    fn place_daemon(&mut self, planned: &PlannedPod) -> Result<(), Failure> {
        let state = &mut self.source.state;
        state.take_pods(|pod| planned.owner.owns(pod));
        if state.cluster.node_count() == 0 {
            return Ok(());
        }
        let asked = answer::ask(&mut state.cluster, &planned.pod, false);
        let asked = asked.map_err(|error| Failure::input(error).about(&planned.named))?;
        let record = answer::record(&state.cluster, &asked, str::to_owned);
        let set = Daemon::of(&record);
        for node in &set.runs_on {
            let mut pod = daemon::on(&planned.pod, node);
            pod.name = format!("{}-{node}", planned.owner.name);
            pod.node_name = Some(node.clone());
            let placed = state.cluster.bind(&pod, node);
            placed.map_err(|error| Failure::input(error).about(&planned.named))?;
            state.pods.push(pod);
        }
        if let waiting @ 1.. = set.waits_on.len() {
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
    kinds: &[&str],
) -> Result<Vec<Document>, Failure> {
    let documents = manifest::documents(paths)?;
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

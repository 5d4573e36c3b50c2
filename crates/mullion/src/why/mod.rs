//! Implements `mullion why`: where a pod goes, or why it fits nowhere and what would help. The engine answers; nothing is decided here.
//!
//! [`source`] gets the cluster's [`state`] (from a running cluster, by its [`lists`], or a file), [`manifest`] reads what does not exist
//! yet, [`template`] says which pods it makes, [`admission`] has them admitted and [`world`] puts the rest into the state, [`pools`] says
//! what can be bought, beside the chunks of [`buffers`] and without what [`faults`] and full [`subnets`] rule out; [`explanation`] asks the
//! engine and [`text`] prints. [`workload`] does so for the pods of a workload. [`cases`] answers many small clusters at once.

mod addresses;
mod admission;
pub(crate) mod answer;
mod buffers;
mod case;
mod cases;
pub(crate) mod daemon;
mod explainer;
mod explanation;
mod faults;
mod groups;
pub(crate) mod hangs;
mod images;
pub(crate) mod kinds;
mod lists;
pub(crate) mod manifest;
mod names;
mod nulls;
mod object;
pub(crate) mod outlook;
pub(crate) mod page;
pub(crate) mod placement;
mod pod_facts;
pub(crate) mod pod_owner;
pub(crate) mod pools;
mod readiness;
pub(crate) mod refused;
pub(crate) mod rules;
pub(crate) mod source;
pub(crate) mod start;
pub(crate) mod state;
pub(crate) mod strict;
mod subnets;
pub(crate) mod template;
mod text;
pub(crate) mod unready;
mod unused;
mod unused_notes;
mod workload;
pub(crate) mod world;
mod writes;

use std::{cmp::Reverse, path::PathBuf, sync::Arc};

use clap::Args;
use jiff::Timestamp;
use mullion_api::labels;
use mullion_engine::{ModelError, images::ImageTable, model::PodSpec};
use mullion_kube_text::validation::selector::Selector;
use rustc_hash::FxHashMap;
use serde_json::json;

use crate::{cli::Output, failure::Failure, out, plan::standing, up};
use explainer::Explainer;
use explanation::Explanation;
use placement::Placement;
use pools::Pools;
use start::Start;
use state::{Keeps, State};
use world::PlannedPod;

/// The note printed if pods have no place and the state has no NodePools, unlike the running cluster perhaps.
const NO_POOLS: &str = "the state has no NodePools, so nothing is bought: kubectl get nodepools,nodeclaims,ec2nodeclasses adds them";

/// Flags of `mullion why`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  mullion why pod iis-7d9c-x2x
  mullion why pod -l app=iis -n shop
  mullion why deployment/iis -n shop
  mullion why -f deployment.yaml
  mullion why -f shop/ -f priorities.yaml iis
  kubectl get nodes,pods,nodepools,nodeclaims,ec2nodeclasses -A -o json | mullion why --state - pod iis-7d9c-x2x
  mullion why --cases cases.jsonl > answers.jsonl")]
pub(crate) struct WhyArgs {
    /// `pod NAME`, `pod/NAME` or NAME; several names may follow; `deployment NAME`, and so for other workloads, says why pods are missing or
    /// do not run; `node NAME` says why a node stays, `nodepool NAME` what a pool buys. With -f,
    /// names of its objects [default: every pod that waits for a node, or hangs on one]
    #[arg(value_name = "POD")]
    what: Vec<String>,

    /// The pods' namespace
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    /// Pods with these labels
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,

    /// Pods that do not exist yet: those of a manifest, or of the workloads in it, with everything else in it that matters to placing
    /// as if it were applied; a directory's manifests; may be repeated
    #[arg(short = 'f', long, value_name = "FILE", conflicts_with = "selector")]
    filename: Vec<PathBuf>,

    /// Ask a list of objects (`kubectl get -o json`) instead of a running cluster; `-` reads stdin. docs/why.md says which kinds count
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,

    /// Answer many cases, a line each: {"items": [...], "pod": {...}}; blank lines are passed over; `-` reads stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = ["what", "namespace", "selector", "filename", "state", "kubeconfig", "context", "images"])]
    cases: Option<PathBuf>,

    /// The cluster's kubeconfig [default: $KUBECONFIG, else that of `mullion up`, else ~/.kube/config]
    #[arg(long, value_name = "PATH")]
    kubeconfig: Option<PathBuf>,

    /// The kubeconfig's context
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// kube-scheduler's configuration file, as `mullion controller` and `mullion up` have it [default: that of a cluster of `mullion up`]
    #[arg(long, value_name = "FILE")]
    scheduler_config: Option<PathBuf>,

    /// What is known of your own images, as `mullion up --images` has it (docs/simulation.md)
    #[arg(long, value_name = "FILE")]
    images: Option<PathBuf>,

    /// Whether pods of -f that no cluster admits (--state) are placed by their images [default: on with --images, or where pods of the
    /// state were placed so]
    #[arg(long, value_name = "on|off", requires = "filename")]
    place_by_image: Option<placement::Switch>,

    /// Do not count `spec.os.name` as a placement requirement (kube-scheduler ignores it)
    #[arg(long)]
    ignore_pod_os: bool,

    /// How to print the answer; `json` prints one object a pod
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Runs the command. Returns true if every pod asked about has a place or gets one by itself.
pub(crate) async fn run(args: WhyArgs) -> Result<bool, Failure> {
    let rules = rules::RuleFlags {
        config: args.scheduler_config.clone(),
        ignore_pod_os: args.ignore_pod_os,
    };
    // Names with a slash beside files are refused below, with what to ask instead.
    let is_plain = |word: &String| !word.contains('/');
    if (args.filename.is_empty() || args.what.first().is_some_and(is_plain))
        && let Some((kind, names)) = names::of_standing(&args.what)?
    {
        return standing::run(of_kind(kind, names, &args, rules)?).await;
    }
    if let Some(path) = &args.cases {
        return cases::run(path, &rules.empty_cluster()?).map(|()| true);
    }
    if args.filename.is_empty()
        && let Some(named) = names::of_workloads(&args.what)?
    {
        return workload::run(named, &args, &rules).await;
    }
    let names = names::of(&args.what, !args.filename.is_empty())?;
    // Files are read before the cluster is asked, because CapacityBuffers and ResourceQuotas in them decide what is read of the cluster.
    let documents = manifest::documents(&args.filename)
        .map(|documents| manifest::last_of_each(documents, args.namespace.as_deref()));
    let has = |kind| {
        documents
            .as_deref()
            .is_ok_and(|all| manifest::have(all, kind))
    };
    let keeps = Keeps {
        templates: has(kinds::BUFFER),
        // The API server of a running cluster holds the pods against its quotas.
        quotas: args.state.is_some() && !args.filename.is_empty(),
        pods: has(kinds::QUOTA),
        ..Keeps::default()
    };
    let mut source = match &args.state {
        Some(path) => {
            let state = State::new(rules.empty_cluster()?).keeping(keeps);
            source::file(path, state).await?
        }
        None => source::live(args.kubeconfig.clone(), args.context.clone(), &rules, keeps).await?,
    };
    let table = Arc::new(up::images::table(args.images.as_deref())?);
    let subjects: Vec<ExplainedPod> = if args.filename.is_empty() {
        let pods = existing(&source.state, &names, &args)?;
        if !source.offline {
            source::add_events(&mut source, &pods).await;
        }
        pods.into_iter().map(ExplainedPod::existing).collect()
    } else {
        let documents = documents?;
        let namespace = args.namespace.as_deref();
        let shown: Vec<_> = args
            .filename
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        let shown = shown.join(", ");
        let placement = Placement::new(args.place_by_image, args.images.is_some(), table.clone());
        let planned = world::apply(
            &mut source,
            &shown,
            documents,
            namespace,
            &names,
            &placement,
        );
        let planned = planned.await?;
        let subject = |planned| ExplainedPod::planned(planned, &source.state);
        planned.into_iter().map(subject).collect()
    };
    let mut state = source.state;
    let lacks_pools = args.state.is_some() && !state.has("NodePool");
    let pools = pools::of(&state).await?;
    let explained = explain(&mut state, &pools, &subjects, &table).map_err(Failure::input)?;
    match args.output {
        Output::Json => {
            for explanation in &explained {
                out::line(&serde_json::to_string(explanation).map_err(Failure::run)?);
            }
        }
        Output::Text => {
            let width = out::width();
            for (index, group) in alike(&explained, &subjects, names.is_empty())
                .into_iter()
                .enumerate()
            {
                if index > 0 {
                    out::line("");
                }
                out::line(&text::text(group[0], &group[1..], out::colours(), width));
            }
        }
    }
    Ok(note_what_counts(&explained, &subjects, &pools, lacks_pools))
}

/// Notes what counts for the answers beside the cluster. Returns true if every pod has a place or gets one by itself.
fn note_what_counts(
    explained: &[Explanation],
    subjects: &[ExplainedPod],
    pools: &Pools,
    lacks_pools: bool,
) -> bool {
    if explained.iter().any(Explanation::is_planned) {
        pools.remarks.iter().for_each(|remark| out::note(remark));
    }
    // Nothing is ever bought for a pod of a DaemonSet.
    let mut answers = explained.iter().zip(subjects);
    let wants = answers.any(|(answer, subject)| {
        let is_of_daemon = subject.daemon.is_some() || answer.only_node.is_some();
        !answer.is_placed() && !is_of_daemon
    });
    if wants && lacks_pools {
        out::note(NO_POOLS);
    }
    explained.iter().all(Explanation::is_placed)
}

/// Turns the arguments into a question about nodes or pools.
fn of_kind(
    kind: standing::Kind,
    names: Vec<String>,
    args: &WhyArgs,
    rules: rules::RuleFlags,
) -> Result<standing::StandingQuery, Failure> {
    if !args.filename.is_empty() || args.selector.is_some() || args.namespace.is_some() {
        let word = args.what[0].split('/').next().unwrap_or_default();
        return Err(Failure::input(format!(
            "a {word} is asked about by its name: -f, -l and -n are about pods"
        ))
        .hint(format!("mullion why {word} NAME")));
    }
    Ok(standing::StandingQuery {
        kind,
        names,
        state: args.state.clone(),
        kubeconfig: args.kubeconfig.clone(),
        context: args.context.clone(),
        rules,
        output: args.output,
    })
}

/// Groups pods that get the same explanation, in the order of the first pod of each group. With `by_cause` pods of one workload that hang for
/// the same cause are a group as well, whatever their nodes are.
fn alike<'e>(
    explained: &'e [Explanation],
    subjects: &[ExplainedPod],
    by_cause: bool,
) -> Vec<Vec<&'e Explanation>> {
    let mut groups: Vec<(_, Vec<&Explanation>)> = Vec::new();
    for (explanation, ExplainedPod { pod, .. }) in explained.iter().zip(subjects) {
        let owner = pod
            .template
            .owner
            .as_ref()
            .map(|own| (&pod.template.namespace, own));
        let hang_alike = |other: &Explanation| {
            other.start.is_some()
                && explanation.start.is_some()
                && other.has_same_cause(explanation)
        };
        let same = groups.iter_mut().find(|(others, group)| {
            group[0].has_same_text(explanation)
                || by_cause && owner.is_some() && *others == owner && hang_alike(group[0])
        });
        match same {
            Some((_, group)) => group.push(explanation),
            None => groups.push((owner, vec![explanation])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// A pod to explain.
struct ExplainedPod {
    /// The pod, as in `pod shop/iis`, or the workload whose pod it would be.
    named: String,
    pod: PodSpec,
    /// For a pod of a DaemonSet, the keys of the existing pods that it would replace.
    daemon: Option<Vec<String>>,
}

impl ExplainedPod {
    fn existing(pod: PodSpec) -> Self {
        ExplainedPod {
            named: format!("pod {}/{}", pod.template.namespace, pod.name),
            pod,
            daemon: None,
        }
    }

    fn planned(planned: PlannedPod, state: &State) -> Self {
        let PlannedPod {
            named, pod, daemon, ..
        } = planned;
        let daemon = daemon.map(|set| {
            let is_own = |other: &&PodSpec| {
                let owner = other.template.owner.as_ref();
                let owned = owner.is_some_and(|own| own.kind == "DaemonSet" && own.name == set);
                owned && other.template.namespace == pod.template.namespace
            };
            state.pods.iter().filter(is_own).map(PodSpec::key).collect()
        });
        ExplainedPod { named, pod, daemon }
    }
}

fn explain(
    state: &mut State,
    pools: &Pools,
    subjects: &[ExplainedPod],
    table: &ImageTable,
) -> Result<Vec<Explanation>, ModelError> {
    let resize_of = |subject: &ExplainedPod| {
        let own = Some(&subject.pod).filter(|pod| pod.node_name.is_some());
        own.and_then(|pod| state.pod_facts.resize_of(pod)).cloned()
    };
    // Collected before the state is taken apart below: the explainer changes its cluster.
    let resizes: Vec<_> = subjects.iter().map(resize_of).collect();
    let start_of = |subject: &ExplainedPod| {
        let own = Some(&subject.pod).filter(|pod| pod.node_name.is_some());
        own.and_then(|pod| state.pod_facts.start_of(pod))
    };
    let starts: Vec<_> = subjects.iter().map(start_of).collect();
    let images_of = |subject: &ExplainedPod| state.pod_facts.images_of(&subject.pod, table);
    let images: Vec<_> = subjects.iter().map(images_of).collect();
    let wrong_node_of = |(subject, start): (&ExplainedPod, &Option<Start>)| {
        let is_open = start.as_ref().is_some_and(Start::may_have_the_wrong_node);
        let name = subject.pod.node_name.as_ref().filter(|_| is_open)?;
        let node = state.nodes().find(|node| node.name == *name)?;
        let words = state.pod_facts.all_images_of(&subject.pod, table);
        let wrong = images::wrong_node(&subject.pod, &words, node, table.builds())?;
        Some((wrong, words))
    };
    let full_subnets_of = |(subject, start): (&ExplainedPod, &Option<Start>)| {
        let waits = start.as_ref().is_some_and(Start::lacks_sandbox);
        let needs_one = waits && !subject.pod.template.host_network;
        let name = subject.pod.node_name.as_ref().filter(|_| needs_one)?;
        let node = state.nodes().find(|node| node.name == *name)?;
        pools.subnets.full_in(node.labels.get(labels::ZONE)?)
    };
    let full_subnets: Vec<_> = subjects.iter().zip(&starts).map(full_subnets_of).collect();
    let wrong_nodes = subjects.iter().zip(&starts).map(wrong_node_of);
    let wrong_nodes: Vec<_> = wrong_nodes.collect();
    let recorded = subjects.iter().filter_map(|subject| {
        let runs = state.pod_facts.recorded_runs(&subject.pod, table)?;
        Some((subject.pod.key(), runs))
    });
    let recorded = recorded.collect();
    let failed_nodes = state.nodes().filter_map(|node| {
        let zone = node.labels.get(labels::ZONE)?;
        let fault = pools.outages.get(zone)?;
        let name = &node.name;
        let why = format!(
            "{name} is in {zone}, which SimulatedFault {fault} lets fail: no pod starts there, though the node may still count as ready"
        );
        Some((name.clone(), why))
    });
    let failed_nodes: FxHashMap<String, String> = failed_nodes.collect();
    let State { cluster, pods, .. } = state;
    let names: FxHashMap<String, String> = pods
        .iter()
        .chain(subjects.iter().map(|subject| &subject.pod))
        .map(|pod| {
            (
                pod.key(),
                format!("{}/{}", pod.template.namespace, pod.name),
            )
        })
        .collect();
    let name_of = |key: &str| names.get(key).map_or(key, String::as_str).to_owned();
    let asked = subjects.iter().filter(|subject| subject.daemon.is_none());
    let asked = asked.map(|subject| &subject.pod);
    let mut explainer = Explainer::new(cluster, pools, (table, recorded), asked)?;
    // Pending pods come last, in the order of the scheduler's queue, because room that one pod makes changes the cluster for the next.
    let mut order: Vec<usize> = (0..subjects.len()).collect();
    order.sort_by_key(|index| {
        let pod = &subjects[*index].pod;
        (pod.node_name.is_none(), Reverse(pod.template.priority))
    });
    let mut explained: Vec<(usize, Explanation)> = Vec::new();
    for index in order {
        let ExplainedPod { named, pod, daemon } = &subjects[index];
        let explanation = match daemon {
            Some(replaced) => explainer.explain_daemon(pod, named.clone(), replaced, name_of)?,
            None => explainer.explain(pod, named.clone(), name_of)?,
        };
        let outage = explanation
            .proposed_nodes()
            .find_map(|node| failed_nodes.get(node))
            .cloned();
        let resize = resizes[index].clone();
        let no_address = explanation.no_address.clone();
        let (wrong_node, words) = wrong_nodes[index].clone().unzip();
        let wrong_node = wrong_node
            .map(|wrong| explainer.complete(wrong, pod))
            .transpose()?;
        explained.push((
            index,
            Explanation {
                outage,
                resize,
                start: starts[index].clone(),
                no_address: no_address.or_else(|| full_subnets[index].clone()),
                images: words.unwrap_or_else(|| images[index].clone()),
                wrong_node,
                wrong_system: images::wrong_system(pod, &images[index]),
                ..explanation
            },
        ));
    }
    // Back to the order in which the user asked.
    explained.sort_by_key(|(index, _)| *index);
    let explained = explained.into_iter().map(|(_, explanation)| explanation);
    Ok(explained.collect())
}

/// Returns the existing pods asked about: the named ones, the selected ones, or all that wait for a node or hang on one.
fn existing(state: &State, names: &[String], args: &WhyArgs) -> Result<Vec<PodSpec>, Failure> {
    let home = args.namespace.as_deref();
    if !names.is_empty() {
        let find = |name: &String| {
            let namespace = home.unwrap_or("default");
            let pod = state.pod(namespace, name).cloned();
            pod.ok_or_else(|| {
                let elsewhere = state.pods.iter().find(|pod| pod.name == *name);
                let failure =
                    Failure::input(format!("there is no pod {name} in namespace {namespace}"));
                match elsewhere {
                    Some(pod) => failure.hint(format!("-n {}", pod.template.namespace)),
                    None => failure.hint("kubectl get pods -A shows the pods there are"),
                }
            })
        };
        return names.iter().map(find).collect();
    }
    let selector = args.selector.as_deref().map(Selector::parse).transpose();
    let selector = selector.map_err(|error| Failure::input(format!("-l: {error}")))?;
    let now = Timestamp::now();
    let hangs = |pod: &PodSpec| {
        let start = state.pod_facts.start_of(pod);
        !pod.terminating && start.is_some_and(|start| hangs::hangs(&start, now))
    };
    let wanted = |pod: &&PodSpec| {
        let labels = json!(pod.template.labels);
        let selected = match &selector {
            Some(selector) => selector.matches(Some(&labels)),
            None => !pod.finished && (pod.node_name.is_none() || hangs(pod)),
        };
        selected && home.is_none_or(|home| pod.template.namespace == home)
    };
    let pods: Vec<_> = state.pods.iter().filter(wanted).cloned().collect();
    match &args.selector {
        // As for a name that no pod has: the user expects an answer about at least one pod.
        Some(labels) if pods.is_empty() => {
            let place = home.map(|home| format!(" in namespace {home}"));
            Err(Failure::input(format!(
                "no pod{} has the labels {labels}",
                place.unwrap_or_default()
            ))
            .hint("kubectl get pods -A --show-labels"))
        }
        None if pods.is_empty() => {
            out::note("no pod waits for a node or hangs on one");
            Ok(pods)
        }
        _ => Ok(pods),
    }
}

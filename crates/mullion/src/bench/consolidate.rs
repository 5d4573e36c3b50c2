//! Implements `mullion bench consolidate`: it measures one decision of consolidation, without API server and controllers.
//!
//! Nodes are bought one by one for three times the pods, as Karpenter does; then two thirds of the pods are removed. The measured time is
//! how long the decision locks the model, which the scheduler and the provisioner share.

use std::{collections::BTreeMap, time::Instant};

use mullion_engine::{
    Cluster, Options,
    disrupt::{Candidate, Consolidation, PoolTerms},
    model::{NodeSpec, Operator, PodSpec, label},
    provision::{NodeTemplate, PlanRequest, PlannedNode, Requirement},
};
use serde_json::json;

use super::provision::{Case, pod, pool};
use crate::{
    cli::{Output, whole},
    failure::Failure,
    out,
};

/// Flags of `mullion bench consolidate`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "Examples:
  mullion bench consolidate
  mullion bench consolidate --pods 20000 --templates 100 -o json")]
pub(crate) struct Args {
    /// Pods that are left
    #[arg(long, value_name = "P", default_value_t = 20_000, allow_negative_numbers = true, value_parser = |text: &str| whole(text, 1, 300_000))]
    pods: u32,
    /// Templates that the pods are of, each with a size of its own
    #[arg(long, value_name = "T", default_value_t = 100, allow_negative_numbers = true, value_parser = |text: &str| whole(text, 1, 10_000))]
    templates: u32,
    /// How to print the results
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// The number of runs; their median is printed.
const RUNS: usize = 5;
/// Of every group of this many pods, one is left.
const THIRD: u32 = 3;

/// Measures the decision and prints a line.
pub(crate) async fn run(args: &Args) -> Result<(), Failure> {
    let mut template = pool(Case::Bought).await?;
    template.requirements.push(Requirement {
        key: label::CAPACITY_TYPE.to_owned(),
        operator: Operator::In,
        values: vec!["on-demand".to_owned()],
        min_values: None,
    });
    let (mut cluster, candidates) = half_empty(args, &template)?;
    let nodes = candidates.len();
    let before: u64 = candidates.iter().map(|own| own.price_micro_usd).sum();
    let terms = PoolTerms {
        budget: usize::MAX,
        least_saving_per_mille: 30,
        boot_seconds: 60,
        balance: None,
    };
    let question = Consolidation {
        candidates,
        pools: BTreeMap::from([(template.pool.clone(), terms)]),
        market: PlanRequest {
            templates: vec![template],
            ..PlanRequest::default()
        },
        ..Consolidation::default()
    };
    let mut seconds = Vec::with_capacity(RUNS);
    let mut last = None;
    for _ in 0..RUNS {
        let start = Instant::now();
        let moves = cluster.consolidate(&question).map_err(failed)?;
        seconds.push(start.elapsed().as_secs_f64());
        last = Some(moves);
    }
    seconds.sort_by(f64::total_cmp);
    let (seconds, moves) = (seconds[RUNS / 2], last.unwrap_or_default());
    let gone: usize = moves.moves.iter().map(|made| made.nodes.len()).sum();
    let bought: usize = moves.moves.iter().map(|made| made.replacements.len()).sum();
    let saved: u64 = moves.moves.iter().map(|made| made.saving_micro_usd).sum();
    let (before, after, bound) = [before, before - saved, moves.bound_micro_usd]
        .map(|price| price as f64 / 1e6)
        .into();
    match args.output {
        Output::Json => out::line(
            &json!({
                "scenario": "consolidate", "nodes": nodes, "pods": args.pods, "templates": args.templates, "gone": gone, "bought": bought,
                "usd_before": before, "usd_after": after, "usd_bound": bound, "seconds": seconds,
            })
            .to_string(),
        ),
        Output::Text => out::line(&format!(
            "{nodes} nodes with {} pods of {} templates: {gone} go, {bought} are bought; {before:.2} USD/h before, {after:.2} after this one decision (no machines for these pods cost less than {bound:.2}); {seconds:.3} s",
            args.pods, args.templates
        )),
    }
    Ok(())
}

fn failed(error: mullion_engine::ModelError) -> Failure {
    Failure::run(format!("the cluster is impossible: {error}"))
}

/// Returns a cluster whose nodes were bought for three times its pods, and the nodes as candidates.
fn half_empty(args: &Args, template: &NodeTemplate) -> Result<(Cluster, Vec<Candidate>), Failure> {
    let mut cluster = Cluster::new(Options::default());
    let pods: Vec<PodSpec> = (0..args.pods * THIRD)
        .map(|index| sized(index, args.templates))
        .collect();
    let request = PlanRequest {
        pods: pods.clone(),
        templates: vec![template.clone()],
        ..PlanRequest::default()
    };
    let plan = cluster.plan(&request).map_err(failed)?;
    let specs: BTreeMap<String, PodSpec> = pods.into_iter().map(|pod| (pod.key(), pod)).collect();
    let mut candidates = Vec::with_capacity(plan.nodes.len());
    for (index, planned) in plan.nodes.iter().enumerate() {
        let (node, price) = node(index, planned, template)?;
        cluster.add_node(&node).map_err(failed)?;
        let mut left = 0;
        for key in &planned.pods {
            let Some(spec) = specs.get(key) else { continue };
            // A third of the pods is left, but scattered over the nodes as if by chance, because 7919 is a prime.
            let number: u32 = spec
                .name
                .rsplit('-')
                .next()
                .and_then(|own| own.parse().ok())
                .unwrap_or(0);
            if (number.wrapping_mul(7919) / 13).is_multiple_of(THIRD) {
                cluster.bind(spec, &node.name).map_err(failed)?;
                left += 1;
            }
        }
        candidates.push(Candidate {
            node: node.name.clone(),
            pool: template.pool.clone(),
            price_micro_usd: price,
            capacity: node.capacity.clone(),
            disruption_milli: 1000 * (1 + left),
            is_spot: false,
        });
    }
    Ok((cluster, candidates))
}

/// Returns the cheapest node for a planned one, and its price.
fn node(
    index: usize,
    planned: &PlannedNode,
    template: &NodeTemplate,
) -> Result<(NodeSpec, u64), Failure> {
    let impossible = || Failure::run("a planned node lists no machine".to_owned());
    let option = planned.options.first().ok_or_else(impossible)?;
    let (zone, capacity_type, price) = option.offerings.first().cloned().ok_or_else(impossible)?;
    let mut types = template.instance_types.iter();
    let spec = types
        .find(|own| own.name == option.name)
        .ok_or_else(impossible)?;
    let name = format!(
        "ip-10-{}-{}-{}",
        index / 65_536,
        index / 256 % 256,
        index % 256
    );
    let mut labels = spec.labels.clone();
    labels.extend(template.labels.clone());
    for (key, value) in [
        (label::HOSTNAME, &name),
        (label::ZONE, &zone),
        (label::CAPACITY_TYPE, &capacity_type),
        (label::INSTANCE_TYPE, &spec.name),
        (label::NODE_POOL, &planned.pool),
    ] {
        labels.insert(key.to_owned(), value.clone());
    }
    let node = NodeSpec {
        labels,
        capacity: spec.capacity.clone(),
        allocatable: spec.allocatable.clone(),
        ..NodeSpec::named(name)
    };
    Ok((node, price))
}

/// Returns a pod whose size depends on its template.
fn sized(index: u32, templates: u32) -> PodSpec {
    let kind = index % templates;
    pod(index, kind, 100 + kind * 37 % 1900, 128 + kind * 211 % 3900)
}

//! The flags of `mullion plan`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::whatif::WhatIf;
use crate::{cli::looks, why::placement::Switch};

/// How a plan is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Table,
    /// One JSON object.
    Json,
    /// The same as YAML.
    Yaml,
}

/// What `mullion plan` is asked.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  mullion plan
  mullion plan -f shop/ --pods
  mullion plan --offline --default-pools -f shop/ -o json
  mullion plan -f shop/ --spot never --scale deployment/web=200
  mullion plan --consolidate
  mullion plan --remove-node ip-10-0-1-12.us-west-2.compute.internal
  kubectl get nodes,pods,nodepools,nodeclaims,ec2nodeclasses,daemonsets -A -o yaml | mullion plan --state -
  mullion plan --catalogue machines.json.gz --cases cases.jsonl > plans.jsonl

It ends with 0 if every pod gets a place, with 1 if one gets none, with 2 if something is wrong with the question. docs/plan.md has worked questions.")]
pub(crate) struct PlanArgs {
    /// Plan for what a manifest would bring, as if it were applied: pods, workloads, DaemonSets, NodePools, EC2NodeClasses and whatever else
    /// matters to placing; a directory's manifests; `-` reads stdin; may be repeated
    #[arg(short = 'f', long, value_name = "FILE")]
    pub(super) filename: Vec<PathBuf>,

    /// Ask a list of objects (`kubectl get -o yaml`) instead of a running cluster; `-` reads stdin. docs/why.md says which kinds count
    #[arg(long, value_name = "FILE")]
    pub(super) state: Option<PathBuf>,

    /// Ask no cluster: there is what the files of -f say, and nothing else
    #[arg(long, conflicts_with_all = ["state", "kubeconfig", "context"], requires = "filename")]
    pub(super) offline: bool,

    /// Add the NodePools that `mullion up` starts with, and switch addresses of Windows pods on
    #[arg(long)]
    pub(super) default_pools: bool,

    /// What is known of your own images, as `mullion up --images` has it (docs/simulation.md)
    #[arg(long, value_name = "FILE")]
    pub(super) images: Option<PathBuf>,

    /// Whether pods of -f that no cluster admits (--state, --offline) are placed by their images [default: on with --images, or where pods
    /// of the state were placed so]
    #[arg(long, value_name = "on|off", requires = "filename")]
    pub(super) place_by_image: Option<Switch>,

    /// The namespace of objects that name none
    #[arg(short, long, value_name = "NAME")]
    pub(super) namespace: Option<String>,

    /// The cluster's kubeconfig [default: $KUBECONFIG, else that of `mullion up`, else ~/.kube/config]
    #[arg(long, value_name = "PATH", conflicts_with = "state")]
    pub(super) kubeconfig: Option<PathBuf>,

    /// The kubeconfig's context
    #[arg(long, value_name = "NAME", conflicts_with = "state")]
    pub(super) context: Option<String>,

    /// kube-scheduler's configuration file, as `mullion controller` and `mullion up` have it [default: that of a cluster of `mullion up`]
    #[arg(long, value_name = "FILE")]
    pub(super) scheduler_config: Option<PathBuf>,

    /// Say which nodes should go so that less is paid: every move with its saving and disturbance, and why other nodes stay
    #[arg(long, conflicts_with_all = ["filename", "default_pools", "pods", "remove_node", "offline", "images"])]
    pub(super) consolidate: bool,

    /// Plan as if this node went: what would be bought, and where its pods would go; may be repeated
    #[arg(long, value_name = "NODE")]
    pub(super) remove_node: Vec<String>,

    /// Say only what nodes for these pods cost at least, however they are packed
    #[arg(long, conflicts_with_all = ["consolidate", "pods", "WhatIf"])]
    pub(super) bound_only: bool,

    /// How long to search for a cheaper plan: pods are looked at so many times for one machine or another. 0 takes the first plan
    #[arg(long, value_name = "LOOKS", value_parser = looks, conflicts_with = "consolidate")]
    pub(super) effort: Option<u64>,

    /// Say of every node which pods it gets
    #[arg(long)]
    pub(super) pods: bool,

    /// How to print the plan
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    pub(super) output: Format,

    /// The machines that cases can buy, by node class (JSON, may be gzipped)
    #[arg(long, value_name = "FILE", requires = "cases")]
    pub(super) catalogue: Option<PathBuf>,

    /// Plan for recorded clusters with pods that wait, a line each; `-` reads stdin
    #[arg(long, value_name = "FILE", requires = "catalogue", conflicts_with_all = ["filename", "state", "offline", "default_pools", "images", "namespace", "kubeconfig", "context", "scheduler_config", "pods", "consolidate", "remove_node", "bound_only", "effort", "WhatIf"])]
    pub(super) cases: Option<PathBuf>,

    #[command(flatten)]
    pub(super) what_if: WhatIf,
}

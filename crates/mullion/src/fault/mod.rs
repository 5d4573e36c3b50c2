//! `mullion fault`: injects a fault into the simulated EC2 of a running cluster, ends it, or lists the faults in effect.
//!
//! A fault is a SimulatedFault object: this command creates or deletes it, and the process of `mullion up` acts on it and writes the result
//! into its status (decision 22). kubectl can do the same.

mod overlap;
mod report;

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, ObjectMeta, PostParams},
};
use mullion_api::{
    fault::{FaultKind, REFUSED, SimulatedFault, SimulatedFaultSpec, SimulatedFaultStatus},
    labels,
};
use mullion_cloud::sim::CapacityPattern;
use tokio::time::{sleep, timeout};

use crate::{cli::Output, failure::Failure, out, why::source};
use overlap::Located;

/// The time in which the cluster must act on a fault.
const PATIENCE: Duration = Duration::from_secs(10);
/// The interval at which the status is checked.
const CHECK: Duration = Duration::from_millis(20);

/// Flags of `mullion fault`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Without FAULT it lists what is in force.

TARGET is
  spot-interruption, rebalance, crash   a node, an instance or a NodeClaim, by its name or id
  zone-outage, zonal-shift              a zone, such as us-west-2a
  capacity                              TYPE, TYPE/ZONE or TYPE/ZONE/CAPACITY-TYPE, each * for any
  new-image                             an image alias or family, such as al2023 or windows2022@latest

Examples:
  mullion fault spot-interruption ip-10-0-1-12.us-west-2.compute.internal
  mullion fault zone-outage us-west-2a
  mullion fault zone-outage us-west-2a --heal
  mullion fault capacity 'm5.large/*/spot'
  mullion fault")]
pub(crate) struct FaultArgs {
    /// What goes wrong
    #[arg(value_name = "FAULT", requires = "target", value_enum)]
    fault: Option<Kind>,

    /// To what it happens
    #[arg(value_name = "TARGET")]
    target: Option<String>,

    /// End it instead
    #[arg(long, requires = "fault")]
    heal: bool,

    /// The cluster's kubeconfig [default: $KUBECONFIG, else that of `mullion up`, else ~/.kube/config]
    #[arg(long, value_name = "PATH")]
    kubeconfig: Option<PathBuf>,

    /// The kubeconfig's context
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// How to print what is in force
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// EC2 takes a spot instance back in two minutes
    SpotInterruption,
    /// EC2 recommends to replace a spot instance
    Rebalance,
    /// An instance stops without notice
    Crash,
    /// All instances of a zone stop, and none can be bought there
    ZoneOutage,
    /// The cluster is shifted away from a zone: what runs there stays, and nothing is bought there
    ZonalShift,
    /// An offering is sold out
    Capacity,
    /// An image family has a newer image, so that nodes of the older one drift
    NewImage,
}

impl From<Kind> for FaultKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::SpotInterruption => Self::SpotInterruption,
            Kind::Rebalance => Self::Rebalance,
            Kind::Crash => Self::Crash,
            Kind::ZoneOutage => Self::ZoneOutage,
            Kind::ZonalShift => Self::ZonalShift,
            Kind::Capacity => Self::Capacity,
            Kind::NewImage => Self::NewImage,
        }
    }
}

/// Injects or ends a fault, or lists those in effect.
pub(crate) async fn run(args: FaultArgs) -> Result<(), Failure> {
    let asked = args.fault.zip(args.target);
    let asked = asked.map(|(kind, target)| (FaultKind::from(kind), target));
    if let Some((kind, target)) = &asked
        && target.trim().is_empty()
    {
        let failure = Failure::input(format!("{kind}: TARGET is empty"));
        return Err(failure.hint(format!("it is {}", targets(*kind))));
    }
    let (client, server) = source::client(args.kubeconfig, args.context).await?;
    let faults = Faults { client, server };
    let all = faults.all().await?;
    let Some((kind, target)) = asked else {
        match args.output {
            Output::Text => out::line(&report::table(&all, jiff::Timestamp::now())),
            Output::Json => out::line(&report::json(&all)),
        }
        return Ok(());
    };
    // A fault of the same target is not made twice: ending one of the two would leave the other in force.
    let known = all.iter().find(|own| is_about(own, kind, &target));
    match (known, args.heal) {
        (Some(known), false) => {
            let status = known.status.clone().unwrap_or_default();
            out::line(&report::known(kind, &target, &status));
            Ok(())
        }
        (None, false) => faults.cause(kind, &target).await,
        (Some(known), true) => faults.heal(kind, &target, known, &all).await,
        (None, true) => Err(not_in_force(kind, &target, &all)),
    }
}

/// Describes the targets that a fault may have.
fn targets(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::SpotInterruption | FaultKind::Rebalance | FaultKind::Crash => {
            "a node, an instance or a NodeClaim, by its name or id"
        }
        FaultKind::ZoneOutage | FaultKind::ZonalShift => "a zone, such as us-west-2a",
        FaultKind::Capacity => "TYPE, TYPE/ZONE or TYPE/ZONE/CAPACITY-TYPE, each * for any",
        FaultKind::NewImage => "an image alias or family, such as al2023 or windows2022@latest",
    }
}

/// Returns whether a fault has this kind and this target, by any of the target's names.
fn is_about(own: &SimulatedFault, kind: FaultKind, target: &str) -> bool {
    let mut names = own.status.iter().flat_map(|status| &status.names);
    own.spec.fault == kind.as_str()
        && (own.spec.target == target || names.any(|name| same(kind, name, target)))
}

/// Returns whether two names are the same target. The version of an image alias does not matter, because the fault is always about the
/// newest image, and parts of an offering that may be anything may be left out.
fn same(kind: FaultKind, name: &str, target: &str) -> bool {
    match kind {
        FaultKind::NewImage => {
            let (family, _) = target.split_once('@').unwrap_or((target, ""));
            family.eq_ignore_ascii_case(name)
        }
        FaultKind::Capacity => {
            let pattern = |text: &str| text.parse::<CapacityPattern>().ok();
            pattern(name).is_some_and(|own| Some(own) == pattern(target))
        }
        _ => name == target,
    }
}

fn not_in_force(kind: FaultKind, target: &str, all: &[SimulatedFault]) -> Failure {
    let failure = Failure::run(format!("no {kind} of {target} is in force"));
    let targets = all.iter().filter(|own| own.spec.fault == kind.as_str());
    let targets: Vec<_> = targets.map(|own| own.spec.target.as_str()).collect();
    failure.hint(if targets.is_empty() {
        "`mullion fault` lists what is in force".to_owned()
    } else {
        format!("in force: {kind} {}", targets.join(", "))
    })
}

struct Faults {
    client: Client,
    server: String,
}

impl Faults {
    fn api(&self) -> Api<SimulatedFault> {
        Api::all(self.client.clone())
    }

    fn failed(&self, what: &str, error: &kube::Error) -> Failure {
        let why = source::root(error);
        let failure = Failure::input(format!("{}: faults cannot be {what}: {why}", self.server));
        match error {
            kube::Error::Api(_) => failure,
            _ => failure.hint(source::IS_IT_RUNNING),
        }
    }

    /// Returns the faults of the cluster.
    async fn all(&self) -> Result<Vec<SimulatedFault>, Failure> {
        match self.api().list(&ListParams::default()).await {
            Ok(list) => Ok(list.items),
            Err(kube::Error::Api(status)) if status.is_not_found() => Err(Failure::input(format!(
                "{} has no simulated EC2 that can be told of faults",
                self.server
            ))
            .hint("start a cluster with `mullion up`; one that an earlier version made can do so after `mullion up --fresh`")),
            Err(error) => Err(self.failed("listed", &error)),
        }
    }

    async fn cause(&self, kind: FaultKind, target: &str) -> Result<(), Failure> {
        let spec = SimulatedFaultSpec {
            fault: kind.as_str().to_owned(),
            target: target.to_owned(),
        };
        let mut object = SimulatedFault::new("", spec);
        object.metadata = ObjectMeta {
            // The target may have characters that a name must not have, such as `/` and `*`.
            generate_name: Some(format!("{kind}-")),
            ..ObjectMeta::default()
        };
        let created = self.api().create(&PostParams::default(), &object).await;
        let created = created.map_err(|error| self.failed("made", &error))?;
        let name = created.name_any();
        let status = match timeout(PATIENCE, self.status(&name)).await {
            Ok(status) => status?,
            Err(_) => {
                return Err(Failure::run(format!(
                    "the cluster has not acted on SimulatedFault {name} within {} s",
                    PATIENCE.as_secs()
                ))
                .hint("`mullion status` says whether it runs"));
            }
        };
        if status.phase == REFUSED {
            // A refused fault is of no more use, because its reason is printed.
            let _ = self.api().delete(&name, &DeleteParams::default()).await;
            let failure = Failure::input(&status.message);
            return Err(if status.near.is_empty() {
                failure
            } else {
                failure.hint(report::names(kind, &status.near))
            });
        }
        out::line(&report::caused(kind, target, &status));
        Ok(())
    }

    /// Waits until the cluster has acted on a fault. A fault that has been deleted by then was effective.
    async fn status(&self, name: &str) -> Result<SimulatedFaultStatus, Failure> {
        loop {
            let found = self.api().get_opt(name).await;
            let found = found.map_err(|error| self.failed("read", &error))?;
            let Some(found) = found else {
                return Ok(SimulatedFaultStatus::default());
            };
            if let Some(status) = found.status {
                return Ok(status);
            }
            sleep(CHECK).await;
        }
    }

    async fn heal(
        &self,
        kind: FaultKind,
        target: &str,
        known: &SimulatedFault,
        all: &[SimulatedFault],
    ) -> Result<(), Failure> {
        // The node is looked up first: it may go once its fault has ended.
        let ended = self.located(known).await;
        let mut others = Vec::new();
        for fault in all.iter().filter(|own| own.name_any() != known.name_any()) {
            // Only of an outage it matters where other instances have crashed.
            others.push(match kind {
                FaultKind::ZoneOutage => self.located(fault).await,
                _ => Located { fault, zone: None },
            });
        }
        let (api, name) = (self.api(), known.name_any());
        match api.delete(&name, &DeleteParams::default()).await {
            Ok(_) => {}
            // Another client has ended the fault already.
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => return Err(self.failed("ended", &error)),
        }
        let remaining = overlap::remaining(&ended, &others);
        out::line(&report::healed(kind, target, &remaining));
        Ok(())
    }

    /// Looks up the zone of a fault's instance. A node that is gone, or that the user may not read, has no zone.
    async fn located<'a>(&self, fault: &'a SimulatedFault) -> Located<'a> {
        let is_crash = fault.spec.fault == FaultKind::Crash.as_str();
        let node = fault.status.iter().flat_map(|status| &status.names).next();
        let zone = match node.filter(|_| is_crash) {
            Some(node) => {
                let nodes: Api<Node> = Api::all(self.client.clone());
                let node = nodes.get_opt(node).await.ok().flatten();
                node.and_then(|node| node.labels().get(labels::ZONE).cloned())
            }
            None => None,
        };
        Located { fault, zone }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_known_by_every_name_of_its_target() {
        let fault = |kind: FaultKind, target: &str, names: &[&str]| SimulatedFault {
            spec: SimulatedFaultSpec {
                fault: kind.as_str().to_owned(),
                target: target.to_owned(),
            },
            status: Some(SimulatedFaultStatus {
                names: names.iter().map(|name| (*name).to_owned()).collect(),
                ..SimulatedFaultStatus::default()
            }),
            ..SimulatedFault::default()
        };
        let crash = fault(FaultKind::Crash, "i-1", &["ip-10-0-0-1", "i-1", "linux-x"]);
        assert!(is_about(&crash, FaultKind::Crash, "linux-x"));
        assert!(is_about(&crash, FaultKind::Crash, "i-1"));
        assert!(!is_about(&crash, FaultKind::Rebalance, "i-1"));
        let image = fault(
            FaultKind::NewImage,
            "al2023@latest",
            &["al2023", "AmazonLinux2023"],
        );
        let sold_out = fault(FaultKind::Capacity, "m5.large", &["m5.large/*/*"]);
        for target in ["m5.large", "m5.large/*", "m5.large/*/*"] {
            assert!(is_about(&sold_out, FaultKind::Capacity, target), "{target}");
        }
        assert!(!is_about(
            &sold_out,
            FaultKind::Capacity,
            "m5.large/us-west-2a"
        ));
        for target in ["AL2023", "al2023@v1", "AmazonLinux2023"] {
            assert!(is_about(&image, FaultKind::NewImage, target), "{target}");
        }
    }

    #[test]
    fn every_kind_has_the_name_of_its_flag() {
        for kind in Kind::value_variants() {
            let flag = kind.to_possible_value().expect("it is shown");
            assert_eq!(FaultKind::from(*kind).as_str(), flag.get_name());
        }
    }
}

//! Checks whether nodes can be bought: NodePools and EC2NodeClasses are ready.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use mullion_api::{
    karpenter::{EC2NodeClass, NodePool, node_pool_condition as condition},
    labels,
};
use mullion_engine::images::System;
use serde::Deserialize;
use serde_json::Value;

use super::{
    super::{
        findings::{Findings, Problem},
        report::{counted, few},
        snapshot::{Snapshot, Unknown, name_of},
    },
    list,
};
use crate::{
    check::fleet,
    why::{
        pools,
        unready::{self, message},
    },
};

/// Checks DOC24: NodePools and EC2NodeClasses are ready.
pub(in super::super) fn ready(snapshot: &Snapshot) -> Result<Findings, Unknown> {
    let (pools, classes) = (snapshot.all("NodePool")?, snapshot.all("EC2NodeClass")?);
    if pools.is_empty() && classes.is_empty() {
        return Ok(Findings::not_needed(
            "no NodePool and no EC2NodeClass is there",
        ));
    }
    let mut found = Findings::state(format!(
        "{} and {} are ready",
        counted(pools.len(), "NodePool", "NodePools"),
        counted(classes.len(), "EC2NodeClass", "EC2NodeClasses"),
    ));
    let mut faulty: Vec<&Value> = Vec::new();
    for class in classes {
        if check_class(class, pools, &mut found) {
            faulty.push(class);
        }
    }
    for pool in pools.iter().filter(|pool| !is_going(pool)) {
        // The pools of a class that is not ready are named with it.
        let of_faulty = faulty
            .iter()
            .any(|class| class_of(pool) == name_of(class) && has_class_alone(pool));
        if !of_faulty {
            check_pool(pool, classes, &mut found);
        }
    }
    // The account that this version can ask is a simulated one, whose instance types are those of the catalogue.
    if snapshot.account.instances.is_ok() {
        for pool in pools.iter().filter(|pool| !is_going(pool)) {
            check_types(pool, &mut found);
        }
    }
    Ok(found)
}

/// Reports a class that is not ready. Returns whether it is reported.
fn check_class(value: &Value, pools: &[Value], found: &mut Findings) -> bool {
    if is_going(value) {
        return false;
    }
    let name = name_of(value);
    let Ok(class) = EC2NodeClass::deserialize(value) else {
        // Its API server has another definition of the kind.
        return false;
    };
    let conditions = class.status.as_ref().map(|status| &status.conditions);
    let conditions = conditions.map_or(&[][..], Vec::as_slice);
    let Some(ready) = conditions.iter().find(|own| own.type_ == condition::READY) else {
        let text = format!(
            "EC2NodeClass {name} has no condition Ready: no controller has looked at the class"
        );
        unseen(found.warn(text));
        return true;
    };
    if ready.status == "True" {
        return false;
    }
    let wrong = unready::wrong_of_class(&class);
    let why = match unready::messages(&wrong) {
        said if said.is_empty() => message(ready).to_owned(),
        said => said.join("; "),
    };
    let users: Vec<_> = pools.iter().filter(|pool| class_of(pool) == name).collect();
    let names = few(users.iter().map(|pool| name_of(pool).to_owned()));
    let without = match users.len() {
        0 => String::new(),
        1 => format!(", so NodePool {names} buys nothing"),
        _ => format!(", so NodePools {names} buy nothing"),
    };
    let text = format!("EC2NodeClass {name} is not ready: {why}{without}");
    let for_windows = users
        .iter()
        .any(|pool| is_for_windows(pool, std::slice::from_ref(value)));
    let problem = problem(found, ready, for_windows, text);
    let mut advised = false;
    for own in &wrong {
        if let Some(advice) = advice(&own.type_) {
            problem.advise(advice);
            advised = true;
        }
    }
    if !advised {
        problem.advise("mend what the conditions of the class say:");
    }
    problem.command(format!(
        "kubectl describe ec2nodeclasses.karpenter.k8s.aws {name}"
    ));
    true
}

/// Reports a pool that is not ready for another reason than its class.
fn check_pool(value: &Value, classes: &[Value], found: &mut Findings) {
    let name = name_of(value);
    let Ok(pool) = NodePool::deserialize(value) else {
        return;
    };
    let mut conditions = pool.status.iter().flat_map(|status| &status.conditions);
    let Some(ready) = conditions.find(|own| own.type_ == condition::READY) else {
        let text =
            format!("NodePool {name} has no condition Ready: no controller has looked at the pool");
        unseen(found.warn(text));
        return;
    };
    if ready.status == "True" {
        return;
    }
    let why = unready::conditions_of_pool(&pool, None);
    let why = if why.is_empty() {
        message(ready).to_owned()
    } else {
        why.join("; ")
    };
    let class = class_of(value);
    let has_class = classes.iter().any(|own| name_of(own) == class);
    let text = format!("NodePool {name} is not ready and buys nothing: {why}");
    let for_windows = is_for_windows(value, classes);
    let problem = problem(found, ready, for_windows, text);
    if !class.is_empty() && !has_class {
        problem.advise(format!(
            "create EC2NodeClass {class}, or name one that is there in spec.template.spec.nodeClassRef:"
        ));
        problem.command("kubectl get ec2nodeclasses.karpenter.k8s.aws");
    } else {
        problem.advise("mend what the conditions of the pool say:");
        problem.command(format!("kubectl describe nodepools.karpenter.sh {name}"));
    }
}

/// Reports a pool that names instance types none of which the account has. Such a pool is ready and buys nothing.
fn check_types(value: &Value, found: &mut Findings) {
    let Ok(pool) = NodePool::deserialize(value) else {
        return;
    };
    if let Some(why) = pools::unlisted(&pool.spec.template.spec.requirements) {
        let name = name_of(value);
        let problem = found.warn(format!("NodePool {name} buys nothing: {why}"));
        problem.advise("name instance types that there are in spec.template.spec.requirements:");
        problem.command(format!("kubectl edit nodepools.karpenter.sh {name}"));
    }
}

/// Adds a problem: a failure where the pools are for Windows and the condition says that something is wrong, otherwise a warning.
fn problem<'f>(
    found: &'f mut Findings,
    ready: &Condition,
    for_windows: bool,
    text: String,
) -> &'f mut Problem {
    if for_windows && ready.status == "False" {
        found.fail(text)
    } else {
        found.warn(text)
    }
}

fn unseen(problem: &mut Problem) {
    problem.advise("see that `mullion controller`, or Karpenter, runs and has a leader:");
    problem.command("kubectl get leases -A");
}

/// Returns what can be done about a condition of an EC2NodeClass that is not true.
fn advice(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "SubnetsReady" => {
            "let spec.subnetSelectorTerms select subnets of the cluster's VPC, or tag the subnets so that the terms do"
        }
        "SecurityGroupsReady" => {
            "let spec.securityGroupSelectorTerms select security groups of the cluster's VPC, or tag the groups so that the terms do"
        }
        "AMIsReady" => {
            "let spec.amiSelectorTerms select an image that is there for the cluster's version, such as alias: windows2022@latest"
        }
        "InstanceProfileReady" => {
            "name a role in spec.role that exists and for which the controller may make instance profiles, or one in spec.instanceProfile"
        }
        "CapacityReservationsReady" => {
            "let spec.capacityReservationSelectorTerms select reservations that are active"
        }
        "PlacementGroupReady" => "let spec.placementGroupSelector select a placement group",
        condition::VALIDATION_SUCCEEDED => {
            "give the controller's role the rights that the message names, or change what the message says of the class"
        }
        _ => return None,
    })
}

fn is_going(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// Returns the name of a pool's EC2NodeClass; empty for a pool of another kind of class, such as the NodeClass of EKS Auto Mode.
fn class_of(pool: &Value) -> &str {
    let class = &pool["spec"]["template"]["spec"]["nodeClassRef"];
    let is_ours = class["group"] == "karpenter.k8s.aws" && class["kind"] == "EC2NodeClass";
    let name = class["name"].as_str().filter(|_| is_ours);
    name.unwrap_or_default()
}

/// Returns whether nothing but its class keeps a pool from being ready.
fn has_class_alone(pool: &Value) -> bool {
    let mut conditions = list(&pool["status"]["conditions"]);
    !conditions
        .any(|own| own["type"] == condition::VALIDATION_SUCCEEDED && own["status"] == "False")
}

/// Returns whether a pool buys Windows nodes: by its requirements, or by the images of its class.
fn is_for_windows(pool: &Value, classes: &[Value]) -> bool {
    let spec = &pool["spec"]["template"]["spec"];
    match fleet::requirement(spec, labels::OS) {
        Some(systems) => systems.iter().any(|own| own == labels::OS_WINDOWS),
        None => {
            let mut classes = classes.iter();
            let class = classes.find(|class| name_of(class) == class_of(pool));
            let family = class.and_then(fleet::family_of);
            family.is_some_and(|family| fleet::system_of(family) == System::Windows)
        }
    }
}

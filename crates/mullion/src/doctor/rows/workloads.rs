//! Checks what workloads need from Windows nodes: Services, manifests, identities and volumes.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{
    super::{
        change::Change,
        findings::Findings,
        kinds::KUBE_SYSTEM,
        report::{counted, few},
        snapshot::{Snapshot, Unknown, name_of, namespace_of},
    },
    is_simulated, list, nodes,
    pods::windows_pods,
    selects,
};
use crate::check::{
    LiveFinding,
    fleet::{BACKENDS, OLD_BACKENDS, is_before_update},
};

/// The number of Services from which kube-proxy runs out of ports if direct server return is off.
const SERVICES: usize = 100;
/// The rules of `mullion check` that have checks of their own here.
const OTHERS: [&str; 6] = ["MUL054", "MUL055", "MUL063", "MUL071", "MUL076", "MUL052"];

/// Checks DOC19: Services stay within the limits of Windows.
pub(in super::super) fn services(snapshot: &Snapshot) -> Result<Findings, Unknown> {
    let nodes = nodes(snapshot, true)?;
    if nodes.is_empty() {
        return Ok(Findings::not_needed("there is no Windows node"));
    }
    let services = snapshot.all("Service")?;
    let mut found = Findings::state(counted(services.len(), "Service", "Services"));
    let most = if nodes.iter().any(|node| is_before_update(node)) {
        OLD_BACKENDS
    } else {
        BACKENDS
    };
    let windows: BTreeSet<_> = nodes.iter().map(|node| name_of(node)).collect();
    let mut backends: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for slice in snapshot.all("EndpointSlice")? {
        let service = slice["metadata"]["labels"]["kubernetes.io/service-name"].as_str();
        let on_windows = list(&slice["endpoints"]).filter(|own| {
            own["nodeName"]
                .as_str()
                .is_some_and(|node| windows.contains(node))
        });
        let key = (namespace_of(slice), service.unwrap_or_default());
        *backends.entry(key).or_default() += on_windows.count();
    }
    let balanced = services
        .iter()
        .filter(|own| own["spec"]["type"] == "LoadBalancer");
    for service in balanced {
        let (namespace, name) = (namespace_of(service), name_of(service));
        let count = backends.get(&(namespace, name)).copied().unwrap_or(0);
        if count as u64 > most {
            found
                .fail(format!("the load balancer of {namespace}/{name} has {count} Windows pods behind it, and serves {most} at most"))
                .advise("split the workload over several Services, or bring nodes of build 17763 to revision 2746:")
                .command(format!("kubectl -n {namespace} get endpointslices -l kubernetes.io/service-name={name}"));
        }
    }
    if services.len() > SERVICES {
        found
            .warn(format!("{} Services: without direct server return kube-proxy of Windows Server 2019 takes ports of the host for each and runs out of them (hcnCreateLoadBalancer failed)", services.len()))
            .advise("start kube-proxy there with direct server return, in the user data of the nodes:")
            .command("-KubeProxyExtraArgs '--feature-gates WinDSR=true --enable-dsr'");
    }
    Ok(found)
}

/// Checks DOC20: workloads pass `mullion check`.
pub(in super::super) fn manifests(snapshot: &Snapshot) -> Result<Findings, Unknown> {
    let findings = snapshot.findings.as_ref().map_err(Clone::clone)?;
    let mut found = Findings::state("no finding");
    // By the text as well, because one rule may find several things.
    let mut alike: BTreeMap<(&str, &str), Vec<&LiveFinding>> = BTreeMap::new();
    for finding in findings
        .iter()
        .filter(|own| !OTHERS.contains(&own.id.as_str()))
    {
        let own = alike.entry((&finding.id, &finding.text)).or_default();
        own.push(finding);
    }
    for ((id, text), findings) in alike {
        let mut objects: Vec<_> = findings.iter().map(|own| own.object.clone()).collect();
        objects.dedup();
        let text = format!("{id} {}: {}", few(objects), text);
        if findings.iter().any(|own| own.is_error) {
            found.fail(text)
        } else {
            found.warn(text)
        };
    }
    if let Some(last) = found.problems.last_mut() {
        last.advise("see every object with what to do, and mend the manifests that the objects are made of:")
            .command("mullion check --live")
            .command("mullion check --fix PATH");
    }
    Ok(found)
}

/// Checks DOC21: group managed service accounts can be used.
pub(in super::super) fn gmsa(snapshot: &Snapshot) -> Result<Findings, Unknown> {
    let specs = snapshot.all("GMSACredentialSpec")?;
    let webhooks = gmsa_webhooks(snapshot)?;
    if specs.is_empty() && webhooks.is_empty() {
        return Ok(Findings::not_needed("there is no GMSACredentialSpec"));
    }
    let mut found = Findings::state(counted(
        specs.len(),
        "GMSACredentialSpec",
        "GMSACredentialSpecs",
    ));
    if webhooks.is_empty() && !is_simulated(snapshot) {
        found
            .fail(format!("{} there, and no webhook of windows-gmsa: pods that name one run without the account", counted(specs.len(), "GMSACredentialSpec is", "GMSACredentialSpecs are")))
            .command("helm install windows-gmsa windows-gmsa/windows-gmsa -n windows-gmsa --create-namespace");
    }
    lock_out(snapshot, &webhooks, &mut found)?;
    for spec in specs {
        let name = name_of(spec);
        if !may_be_used(snapshot, name)? {
            found
                .warn(format!("no role that is bound to anybody lets a service account use the GMSACredentialSpec {name}: pods that name it are refused"))
                .command(format!("kubectl create clusterrole {name}-user --verb=use --resource=gmsacredentialspecs.windows.k8s.io --resource-name={name}"))
                .command(format!("kubectl -n NAMESPACE create rolebinding {name}-user --clusterrole={name}-user --serviceaccount=NAMESPACE:default"));
        }
    }
    Ok(found)
}

/// Returns the webhooks of windows-gmsa.
fn gmsa_webhooks(snapshot: &Snapshot) -> Result<Vec<&Value>, Unknown> {
    let mut webhooks = Vec::new();
    for kind in [
        "MutatingWebhookConfiguration",
        "ValidatingWebhookConfiguration",
    ] {
        for configuration in snapshot.all(kind)? {
            let own = list(&configuration["webhooks"]);
            webhooks.extend(own.filter(|own| {
                own["name"]
                    .as_str()
                    .is_some_and(|name| name.contains("windows-gmsa"))
            }));
        }
    }
    Ok(webhooks)
}

/// Reports webhooks that can lock up the cluster: pods of kube-system cannot start before such a webhook answers, while its own pods wait
/// for the network that those pods provide.
fn lock_out(snapshot: &Snapshot, webhooks: &[&Value], found: &mut Findings) -> Result<(), Unknown> {
    let Some(namespace) = snapshot.find("Namespace", "", KUBE_SYSTEM)? else {
        return Ok(());
    };
    let labels = &namespace["metadata"]["labels"];
    let locks = |own: &&&Value| {
        let policy = own["failurePolicy"].as_str().unwrap_or("Fail");
        policy == "Fail" && selects(&own["namespaceSelector"], labels)
    };
    let locking: Vec<_> = webhooks.iter().filter(locks).collect();
    if locking.is_empty() {
        return Ok(());
    }
    let mut with = labels.clone();
    with["windows.k8s.io/disabled"] = "true".into();
    let problem = found.fail("the webhook of windows-gmsa must answer for pods of kube-system too: after all nodes were gone, aws-node waits for it and it for aws-node");
    if locking
        .iter()
        .any(|own| selects(&own["namespaceSelector"], &with))
    {
        problem
            .advise("give its webhooks a namespaceSelector that leaves kube-system out")
            .command("kubectl edit validatingwebhookconfigurations,mutatingwebhookconfigurations")
    } else {
        let patch = json!({"metadata": {"labels": {"windows.k8s.io/disabled": "true"}}});
        problem.with_fix(Change::merge(namespace, patch))
    };
    Ok(())
}

/// Returns whether a role that allows the use of a GMSACredentialSpec is bound to any subject.
fn may_be_used(snapshot: &Snapshot, spec: &str) -> Result<bool, Unknown> {
    let mut bound = BTreeSet::new();
    for (kind, binding) in [("ClusterRoleBinding", ""), ("RoleBinding", "namespaced")] {
        for own in snapshot.all(kind)? {
            let role = &own["roleRef"];
            let home = if role["kind"] == "Role" && !binding.is_empty() {
                namespace_of(own)
            } else {
                ""
            };
            if list(&own["subjects"]).next().is_some() {
                bound.insert((home, role["name"].as_str().unwrap_or_default()));
            }
        }
    }
    let allows = |role: &&Value| {
        list(&role["rules"]).any(|rule| {
            let has = |field: &str, wanted: &str| {
                list(&rule[field]).any(|own| own == wanted || own == "*")
            };
            let named = list(&rule["resourceNames"]).next().is_none()
                || list(&rule["resourceNames"]).any(|own| own == spec);
            // Administrators' rules with the verb `*` are not meant for service accounts.
            let is_meant = list(&rule["verbs"]).any(|own| own == "use");
            is_meant
                && named
                && has("apiGroups", "windows.k8s.io")
                && has("resources", "gmsacredentialspecs")
        })
    };
    for kind in ["ClusterRole", "Role"] {
        let mut roles = snapshot.all(kind)?.iter().filter(allows);
        if roles.any(|role| bound.contains(&(namespace_of(role), name_of(role)))) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Checks DOC22: the volumes of Windows pods have their driver.
pub(in super::super) fn volumes(snapshot: &Snapshot) -> Result<Findings, Unknown> {
    let mut found = Findings::default();
    let mut count = 0;
    for pod in windows_pods(snapshot)? {
        for driver in drivers(snapshot, pod)? {
            count += 1;
            let title = format!("{}/{}", namespace_of(pod), name_of(pod));
            if driver == "efs.csi.aws.com" {
                found
                    .fail(format!(
                        "the Windows pod {title} has an EFS volume, which Windows cannot mount"
                    ))
                    .advise("use FSx for Windows File Server over SMB, or EBS for one node");
                continue;
            }
            let Some(node) = pod["spec"]["nodeName"].as_str() else {
                continue;
            };
            let drivers = snapshot
                .find("CSINode", "", node)?
                .map(|own| &own["spec"]["drivers"]);
            let mut drivers = drivers.into_iter().flat_map(list);
            if !drivers.any(|own| own["name"] == driver.as_str()) {
                found
                    .fail(format!("the Windows pod {title} has a volume of {driver}, and the driver does not run on its node {node}"))
                    .advise("let the driver's Windows DaemonSet run (HostProcess, or csi-proxy on the node), for EBS:")
                    .command("helm upgrade aws-ebs-csi-driver aws-ebs-csi-driver/aws-ebs-csi-driver -n kube-system --reuse-values --set node.enableWindows=true");
            }
        }
    }
    if count == 0 {
        return Ok(Findings::not_needed(
            "no Windows pod has a volume of a CSI driver",
        ));
    }
    found.state = format!("{} of Windows pods", counted(count, "volume", "volumes"));
    Ok(found)
}

/// Returns the CSI drivers of a pod's volumes.
fn drivers(snapshot: &Snapshot, pod: &Value) -> Result<Vec<String>, Unknown> {
    let mut drivers = Vec::new();
    for volume in list(&pod["spec"]["volumes"]) {
        if let Some(driver) = volume["csi"]["driver"].as_str() {
            drivers.push(driver.to_owned());
        }
        let Some(claim) = volume["persistentVolumeClaim"]["claimName"].as_str() else {
            continue;
        };
        let claim = snapshot.find("PersistentVolumeClaim", namespace_of(pod), claim)?;
        let volume = claim.and_then(|own| own["spec"]["volumeName"].as_str());
        let Some(volume) = volume else { continue };
        let volume = snapshot.find("PersistentVolume", "", volume)?;
        let driver = volume.and_then(|own| own["spec"]["csi"]["driver"].as_str());
        drivers.extend(driver.map(str::to_owned));
    }
    Ok(drivers)
}

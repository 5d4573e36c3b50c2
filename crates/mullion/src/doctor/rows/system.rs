//! Checks what the cluster itself needs: Linux nodes for its own components, DNS, and the permissions of kube-proxy.

use serde_json::{Value, json};

use super::{
    super::{
        change::Change,
        findings::Findings,
        report::{counted, names},
        snapshot::{Snapshot, Unknown, namespace_of},
    },
    is_ready, is_simulated, nodes,
};

/// The group of kube-proxy on Windows nodes.
pub(super) const PROXY_GROUP: &str = "eks:kube-proxy-windows";
const PROXY_ROLE: &str = "system:node-proxier";

/// Checks DOC07: Linux nodes run CoreDNS.
pub(in super::super) fn linux_and_names(snapshot: &Snapshot) -> Result<Findings, Unknown> {
    let ready = nodes(snapshot, false)?;
    let ready = ready.into_iter().filter(|node| is_ready(node)).count();
    let mut found = Findings::state(counted(ready, "Linux node", "Linux nodes"));
    match ready {
        0 => {
            found
                .fail("no Linux node is ready: CoreDNS and the cluster's other parts run on Linux only")
                .command("eksctl create nodegroup --cluster CLUSTER --name linux --nodes 2");
        }
        1 => {
            found
                .warn("one Linux node runs the cluster's own parts: when it goes, no name is answered")
                .command("eksctl scale nodegroup --cluster CLUSTER --name GROUP --nodes 2");
        }
        _ => {}
    }
    let Some(dns) = snapshot.system("Deployment", "coredns")? else {
        if is_simulated(snapshot) {
            found.state += "; the simulated network answers names itself";
        } else if snapshot.system("Service", "kube-dns")?.is_some() {
            found.state += "; names are answered by another server than CoreDNS";
        } else {
            found
                .fail("neither the Deployment kube-system/coredns nor the Service kube-dns is there: no pod resolves a name")
                .command("aws eks create-addon --cluster-name CLUSTER --addon-name coredns");
        }
        return Ok(found);
    };
    coredns(snapshot, dns, &mut found)?;
    Ok(found)
}

fn coredns(snapshot: &Snapshot, dns: &Value, found: &mut Findings) -> Result<(), Unknown> {
    let wanted = dns["spec"]["replicas"].as_u64().unwrap_or(1);
    let ready = dns["status"]["readyReplicas"].as_u64().unwrap_or(0);
    found.state += &format!(", {ready} of {wanted} CoreDNS pods ready");
    let two = || Change::merge(dns, json!({"spec": {"replicas": 2}}));
    match (ready, wanted) {
        (_, 0) => {
            found
                .fail("CoreDNS is scaled to 0: no pod resolves a name")
                .with_fix(two());
            return Ok(());
        }
        (0, _) => {
            found
                .fail("no CoreDNS pod is ready: no pod resolves a name")
                .command("kubectl -n kube-system describe pods -l k8s-app=kube-dns");
            return Ok(());
        }
        (_, 1) => {
            found
                .warn("one CoreDNS pod answers all names")
                .with_fix(two());
            return Ok(());
        }
        _ => {}
    }
    let pods = snapshot.all("Pod")?.iter();
    let mut homes: Vec<_> = pods
        .filter(|pod| {
            namespace_of(pod) == "kube-system" && pod["metadata"]["labels"]["k8s-app"] == "kube-dns"
        })
        .filter_map(|pod| pod["spec"]["nodeName"].as_str())
        .collect();
    let pods = homes.len();
    homes.sort_unstable();
    homes.dedup();
    if let ([home], 2..) = (homes.as_slice(), pods) {
        found
            .warn(format!(
                "all CoreDNS pods are on node {home}: when it goes, no name is answered"
            ))
            .command("kubectl -n kube-system rollout restart deployment coredns");
    }
    Ok(())
}

/// Checks DOC11: kube-proxy on Windows nodes may read Services.
pub(in super::super) fn proxy_binding(snapshot: &Snapshot) -> Result<Findings, Unknown> {
    let bindings = snapshot.all("ClusterRoleBinding")?.iter();
    let is_it = |binding: &&Value| {
        let subjects = binding["subjects"].as_array();
        binding["roleRef"]["name"] == PROXY_ROLE
            && subjects
                .into_iter()
                .flatten()
                .any(|own| own["kind"] == "Group" && own["name"] == PROXY_GROUP)
    };
    let there: Vec<_> = bindings.filter(is_it).collect();
    if !there.is_empty() {
        return Ok(Findings::state(names(there)));
    }
    let mut found = Findings::default();
    let text = format!(
        "no ClusterRoleBinding gives the group {PROXY_GROUP} the role {PROXY_ROLE}: kube-proxy of Windows nodes may not read Services, so that no Service and no name is reached from there"
    );
    let problem = found.fail(text);
    if let Some(other) = snapshot.find("ClusterRoleBinding", "", PROXY_GROUP)? {
        // The roleRef of a binding is immutable, so the binding is replaced.
        problem.with_fix(Change::delete(other));
    }
    let object = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {
            "name": PROXY_GROUP,
            "labels": {"k8s-app": "kube-proxy", "eks.amazonaws.com/component": "kube-proxy"},
        },
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": PROXY_ROLE},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": PROXY_GROUP}],
    });
    let command = format!(
        "kubectl create clusterrolebinding {PROXY_GROUP} --clusterrole={PROXY_ROLE} --group={PROXY_GROUP}"
    );
    problem.with_fix(Change::create(object, &command));
    Ok(found)
}

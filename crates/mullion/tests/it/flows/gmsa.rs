//! The Kubernetes page "Configure GMSA for Windows Pods and containers", with the webhooks that it installs built in.

use crate::cluster::Cluster;

const CREDENTIAL_SPEC: &str = "\
apiVersion: windows.k8s.io/v1
kind: GMSACredentialSpec
metadata: {name: gmsa-webapp1}
credspec:
  ActiveDirectoryConfig:
    GroupManagedServiceAccounts:
    - {Name: WebApp1, Scope: CONTOSO}
    - {Name: WebApp1, Scope: contoso.com}
  CmsPlugins: [ActiveDirectory]
  DomainJoinConfig:
    DnsName: contoso.com
    DnsTreeName: contoso.com
    Guid: 244818ae-87ac-4fcd-92ec-e79e5252348a
    MachineAccountName: WebApp1
    NetBiosName: CONTOSO
    Sid: S-1-5-21-2126449477-2524075714-3094792973
";
const CONTENTS: &str = r#"{"ActiveDirectoryConfig":{"GroupManagedServiceAccounts":[{"Name":"WebApp1","Scope":"CONTOSO"},{"Name":"WebApp1","Scope":"contoso.com"}]},"CmsPlugins":["ActiveDirectory"],"DomainJoinConfig":{"DnsName":"contoso.com","DnsTreeName":"contoso.com","Guid":"244818ae-87ac-4fcd-92ec-e79e5252348a","MachineAccountName":"WebApp1","NetBiosName":"CONTOSO","Sid":"S-1-5-21-2126449477-2524075714-3094792973"}}"#;

/// A Windows pod that names a GMSACredentialSpec for all its containers.
fn pod(name: &str, credential_spec: &str) -> String {
    format!(
        "\
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  securityContext: {{windowsOptions: {{gmsaCredentialSpecName: {credential_spec}}}}}
  containers:
  - {{name: iis, image: 'mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2022'}}
  nodeSelector: {{kubernetes.io/os: windows}}
"
    )
}

#[test]
fn a_windows_workload_gets_the_group_managed_service_account_that_it_names() {
    let cluster = Cluster::start(&["--speed", "max", "--gmsa-random-hostname"]);
    let create = ["create", "-f", "-"];
    let refused = cluster.refused(&create, &pod("early", "gmsa-webapp1"));
    assert!(
        refused.contains("cred spec gmsa-webapp1 does not exist"),
        "{refused}"
    );
    cluster.apply(CREDENTIAL_SPEC);
    let old = cluster.kubectl(&[
        "get",
        "gmsacredentialspecs.v1alpha1.windows.k8s.io",
        "-o",
        "name",
    ]);
    assert_eq!(old.trim(), "gmsacredentialspec.windows.k8s.io/gmsa-webapp1");
    let refused = cluster.refused(&create, &pod("early", "gmsa-webapp1"));
    let why =
        "service account \"default\" is not authorized to `use` GMSA cred spec \"gmsa-webapp1\"";
    assert!(refused.contains(why), "{refused}");

    // kubectl create clusterrole refuses the verb.
    cluster.apply(
        "\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: webapp1-role}
rules:
- apiGroups: [windows.k8s.io]
  resources: [gmsacredentialspecs]
  verbs: [use]
  resourceNames: [gmsa-webapp1]
",
    );
    cluster.kubectl(&[
        "create",
        "rolebinding",
        "webapp1",
        "--clusterrole=webapp1-role",
        "--serviceaccount=default:default",
    ]);
    cluster.apply(
        "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: with-creds}
spec:
  selector: {matchLabels: {run: with-creds}}
  template:
    metadata: {labels: {run: with-creds}}
    spec:
      containers:
      - name: iis
        image: mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2022
        securityContext: {windowsOptions: {gmsaCredentialSpecName: gmsa-webapp1}}
      nodeSelector: {kubernetes.io/os: windows, node.kubernetes.io/windows-build: 10.0.20348}
",
    );
    cluster.kubectl(&[
        "rollout",
        "status",
        "deployment/with-creds",
        "--timeout=110s",
    ]);
    let pods = cluster.get(&["pods", "-l", "run=with-creds"]);
    let spec = &pods["items"][0]["spec"];
    let options = &spec["containers"][0]["securityContext"]["windowsOptions"];
    assert_eq!(options["gmsaCredentialSpec"], CONTENTS);
    assert_eq!(spec["hostname"].as_str().map(str::len), Some(15), "{spec}");

    cluster.kubectl(&["create", "namespace", "unchecked"]);
    cluster.kubectl(&[
        "label",
        "namespace",
        "unchecked",
        "windows.k8s.io/disabled=true",
    ]);
    let output = cluster.run(
        "kubectl",
        &["create", "-n", "unchecked", "-f", "-"],
        &pod("free", "nope"),
    );
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_windows_pod_by_affinity_has_an_address_that_only_the_controller_chooses() {
    let cluster = Cluster::start(&["--speed", "max"]);
    cluster.apply(
        "\
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - {name: iis, image: 'mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2022'}
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
        - matchExpressions:
          - {key: node.kubernetes.io/windows-build, operator: In, values: [10.0.20348]}
",
    );
    let web = cluster.get(&["pod", "web"]);
    let resources = &web["spec"]["containers"][0]["resources"];
    for list in ["requests", "limits"] {
        assert_eq!(
            resources[list]["vpc.amazonaws.com/PrivateIPv4Address"], "1",
            "{resources}"
        );
    }
    cluster.kubectl(&["wait", "pod/web", "--for=condition=Ready", "--timeout=110s"]);
    let annotate = [
        "annotate",
        "--overwrite",
        "pod",
        "web",
        "vpc.amazonaws.com/PrivateIPv4Address=10.9.9.9/24",
    ];
    let refused = cluster.refused(&annotate, "");
    assert!(
        refused.contains("annotation is not set by vpc-resource-controller"),
        "{refused}"
    );
    let run = [
        "run",
        "chosen",
        "--image=nginx",
        "--annotations=vpc.amazonaws.com/PrivateIPv4Address=10.9.9.9/24",
    ];
    let refused = cluster.refused(&run, "");
    let why = "pod cannot be created with vpc.amazonaws.com/PrivateIPv4Address annotation";
    assert!(refused.contains(why), "{refused}");
}

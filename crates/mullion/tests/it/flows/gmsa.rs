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

    // Without its credential spec a pod that is there is started again with what it was given, and the pod that replaces it is refused.
    cluster.kubectl(&["delete", "gmsacredentialspec", "gmsa-webapp1"]);
    let name = pods["items"][0]["metadata"]["name"].as_str();
    let name = name.expect("it has a name");
    cluster.kubectl(&["annotate", "pod", name, "mullion.dev/simulate-exit=1"]);
    let restarts = [
        "get",
        "pod",
        name,
        "-o",
        "jsonpath={.status.containerStatuses[0].restartCount}",
    ];
    cluster.until("it is started again", &restarts, |text| text != "0");
    cluster.kubectl(&["delete", "pod", name, "--wait=false"]);
    let events = [
        "get",
        "events",
        "--field-selector=reason=FailedCreate",
        "-o",
        "jsonpath={.items[*].message}",
    ];
    cluster.until("the pod is not replaced", &events, |text| {
        text.contains("Error creating: cred spec gmsa-webapp1 does not exist")
    });

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

/// The page's manifests. Its credential spec has a name that no object can have, and its Deployments are of a version that Kubernetes 1.16
/// was the last to serve; both are put right as its pods spell the name.
const PAGE_SPEC: &str = "\
apiVersion: windows.k8s.io/v1alpha1
kind: GMSACredentialSpec
metadata:
  name: gmsa-WebApp1  #This is an arbitrary name but it will be used as a reference
credspec:
  ActiveDirectoryConfig:
    GroupManagedServiceAccounts:
    - Name: WebApp1   #Username of the GMSA account
      Scope: CONTOSO  #NETBIOS Domain Name
    - Name: WebApp1   #Username of the GMSA account
      Scope: contoso.com #DNS Domain Name
  CmsPlugins:
  - ActiveDirectory
  DomainJoinConfig:
    DnsName: contoso.com  #DNS Domain Name
    DnsTreeName: contoso.com #DNS Domain Name Root
    Guid: 244818ae-87ac-4fcd-92ec-e79e5252348a  #GUID
    MachineAccountName: WebApp1 #Username of the GMSA account
    NetBiosName: CONTOSO  #NETBIOS Domain Name
    Sid: S-1-5-21-2126449477-2524075714-3094792973 #SID of GMSA
";
const PAGE_ROLE: &str = "\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: webapp1-role
rules:
- apiGroups: ['windows.k8s.io']
  resources: ['gmsacredentialspecs']
  verbs: ['use']
  resourceNames: ['gmsa-webapp1']
";
const PAGE_BINDING: &str = "\
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: allow-default-svc-account-read-on-gmsa-WebApp1
  namespace: default
subjects:
- kind: ServiceAccount
  name: default
  namespace: default
roleRef:
  kind: ClusterRole
  name: webapp1-role
  apiGroup: rbac.authorization.k8s.io
";

/// The page's Deployment, with the credential spec for the pod or for its container.
fn page_deployment(name: &str, for_container: bool) -> String {
    let context = "securityContext: {windowsOptions: {gmsaCredentialSpecName: gmsa-webapp1}}";
    let (pod, container) = if for_container {
        ("", context)
    } else {
        (context, "")
    };
    format!(
        "\
apiVersion: apps/v1
kind: Deployment
metadata:
  labels: {{run: {name}}}
  name: {name}
  namespace: default
spec:
  replicas: 1
  selector:
    matchLabels: {{run: {name}}}
  template:
    metadata:
      labels: {{run: {name}}}
    spec:
      {pod}
      containers:
      - image: mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2019
        imagePullPolicy: Always
        name: iis
        {container}
      nodeSelector:
        kubernetes.io/os: windows
"
    )
}

#[test]
fn the_page_is_followed_step_by_step() {
    let cluster = Cluster::start(&["--speed", "max"]);
    // Install the GMSACredentialSpec CRD: it is there, and applying it again does no harm.
    cluster.apply(include_str!(
        "../../../../api/crds/windows.k8s.io_gmsacredentialspecs.yaml"
    ));

    // Create GMSA credential spec resources.
    let refused = cluster.refused(&["apply", "-f", "-"], PAGE_SPEC);
    let why = "is invalid: metadata.name: Invalid value: \"gmsa-WebApp1\": a lowercase RFC 1123 subdomain must consist of";
    assert!(refused.contains(why), "{refused}");
    let warned = cluster.apply(&PAGE_SPEC.replace("gmsa-WebApp1", "gmsa-webapp1"));
    let deprecated = "Warning: windows.k8s.io/v1alpha1 GMSACredentialSpec is deprecated; use windows.k8s.io/v1 GMSACredentialSpec";
    assert!(warned.contains(deprecated), "{warned}");

    // A Deployment before its service account may use it: its ReplicaSet says so.
    cluster.apply(&page_deployment("early", false));
    let events = [
        "get",
        "events",
        "--field-selector=reason=FailedCreate",
        "-o",
        "jsonpath={.items[*].message}",
    ];
    let told = cluster.until("the ReplicaSet may not", &events, |text| !text.is_empty());
    let why = "Error creating: service account \"default\" is not authorized to `use` GMSA cred spec \"gmsa-webapp1\"";
    assert!(told.contains(why), "{told}");
    let create = ["create", "-f", "-"];
    let refused = cluster.refused(&create, &pod("early", "gmsa-webapp1"));
    // windows-gmsa gives no reason, which kubectl would show in brackets.
    assert!(refused.starts_with("Error from server: "), "{refused}");
    cluster.kubectl(&["delete", "deployment", "early"]);

    // Configure the cluster role, assign it, and refer to the credential spec: in the pod, and in a container.
    cluster.apply(PAGE_ROLE);
    cluster.apply(PAGE_BINDING);
    for (name, for_container) in [("with-creds", false), ("with-creds-too", true)] {
        cluster.apply(&page_deployment(name, for_container));
        let deployment = format!("deployment/{name}");
        cluster.kubectl(&["rollout", "status", &deployment, "--timeout=110s"]);
        let pods = cluster.get(&["pods", "-l", &format!("run={name}")]);
        let spec = &pods["items"][0]["spec"];
        let context = if for_container {
            &spec["containers"][0]["securityContext"]
        } else {
            &spec["securityContext"]
        };
        let options = &context["windowsOptions"];
        assert_eq!(options["gmsaCredentialSpecName"], "gmsa-webapp1");
        assert_eq!(options["gmsaCredentialSpec"], CONTENTS);
    }
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

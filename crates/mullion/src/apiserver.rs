//! `mullion apiserver`: the API server without controllers, nodes or cloud, until Ctrl-C. Tests of controllers use it.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;
use mullion_apiserver::{
    ApiServer, Config, ServiceRange, StaticTokens, Tls, TokenKeys, admission::UnknownPlugin,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    cli::ApiServerArgs,
    clusters::{
        NamedCluster, keep,
        running::{self, Record},
    },
    failure::{Failure, file_error},
    kubeconfig::{self, Target},
    open_files, out,
    up::{self, port::PortChoice},
};

/// The name of the cluster, the user and the context in the kubeconfig.
const NAME: &str = "apiserver";

/// Runs the server until it is interrupted.
pub(crate) async fn run(args: ApiServerArgs) -> Result<(), Failure> {
    let began = Instant::now();
    let service_cidr: ServiceRange = args.service_cluster_ip_range.parse().map_err(|error| {
        Failure::input(format!("--service-cluster-ip-range: {error}"))
            .hint("--service-cluster-ip-range 10.96.0.0/16")
    })?;
    let disabled_admission = args.disable_admission_plugins.parse();
    let disabled_admission = disabled_admission.map_err(|error: UnknownPlugin| {
        Failure::input(format!("--disable-admission-plugins: {error}"))
            .hint("--disable-admission-plugins ServiceAccount")
    })?;
    let tokens = match &args.token_auth_file {
        Some(path) => tokens(path)?,
        None => StaticTokens::default(),
    };
    let token_keys = token_keys(&args.service_account_key_file)?;
    let advertise = match args.advertise_address {
        Some(ip) if ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() => {
            return Err(Failure::input(format!(
                "--advertise-address: {ip} cannot be an endpoint of the Service default/kubernetes, which is reached from other machines"
            ))
            .hint("give an address of this machine in its network"));
        }
        given => given.or_else(default_route_address),
    };
    let chosen = NamedCluster {
        name: None,
        directory: args.data_dir,
    };
    let directory = chosen.directory()?;
    let is_kept = directory.as_deref().is_some_and(keep::is_kept);
    let target = Target::resolve(args.kubeconfig, false, NAME, is_kept)?;
    let now = Timestamp::now();
    let store = keep::open(directory.as_deref(), false, now)?;
    let port = match (args.port, keep::port(store.notes())) {
        (Some(port), _) => PortChoice::Exactly(port),
        (None, Some(port)) => PortChoice::Again(port),
        (None, None) => PortChoice::Usual,
    };
    let (listener, address) = port.bind().await?;
    keep::set_port(store.notes(), address.port());
    let service_ip = service_cidr.first();
    let certs = keep::authority(store.notes(), now)
        .and_then(|authority| authority.issue(now, [service_ip].into_iter().chain(advertise)))
        .map_err(|error| Failure::run(format!("certificates cannot be made: {error}")))?;
    let front_proxies = keep::front_proxy_authority(store.notes(), now)
        .map_err(|error| Failure::run(format!("certificates cannot be made: {error}")))?;
    let tls = Tls::from_pem(
        certs.server.cert.as_bytes(),
        certs.server.key.as_bytes(),
        certs.ca.as_bytes(),
    )
    .map_err(|error| Failure::run(format!("the server's certificate cannot be used: {error}")))?;
    let config = Config {
        service_cidr,
        disabled_admission,
        tokens,
        token_keys,
        advertise: advertise.into_iter().collect(),
        port: address.port(),
        client_authority: Some(certs.ca.clone()),
        limits: open_files::server_limits(),
        front_proxy_authority: Some(front_proxies),
        ..Config::default()
    };
    let notes = store.notes().clone();
    let server = ApiServer::with_store(config, store).await;
    let target = target.free(address.port());
    let url = format!("https://{address}");
    let leads_to = kubeconfig::Cluster {
        name: NAME,
        server: &url,
        directory: directory.as_deref(),
        certs: &certs,
    };
    kubeconfig::write(&target, &leads_to)?;
    keep::set_kubeconfig(&notes, target.path());
    let announced = running::announce(&Record {
        name: NAME.to_owned(),
        pid: std::process::id(),
        server: url.clone(),
        kubeconfig: Some(target.path().to_owned()),
        directory: directory.clone(),
        started: now,
        log: None,
        access: kubeconfig::for_cluster(&leads_to),
    });
    let stop = CancellationToken::new();
    let serving = tokio::spawn({
        let (server, stopped) = (Arc::clone(&server), stop.clone().cancelled_owned());
        async move { server.serve(listener, tls, stopped).await }
    });
    out::line(&format!(
        "api  {url}  ready in {:.2} s\nexport KUBECONFIG={}\nCtrl-C stops the server.",
        began.elapsed().as_secs_f64(),
        up::quoted(target.path())
    ));
    up::interrupts().await?;
    stop.cancel();
    // A panic of the task was printed already and must not stop the rest of the shutdown.
    let _ = serving.await;
    server.close().await;
    drop(announced);
    Ok(())
}

/// Returns the address from which this machine sends to others, of IPv4 first (kube-apiserver: the default of `--advertise-address`).
fn default_route_address() -> Option<IpAddr> {
    // Addresses for documentation. Nothing is sent: connecting only chooses a route.
    let others: [(IpAddr, IpAddr); 2] = [
        (
            Ipv4Addr::UNSPECIFIED.into(),
            Ipv4Addr::new(192, 0, 2, 1).into(),
        ),
        (
            Ipv6Addr::UNSPECIFIED.into(),
            Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
        ),
    ];
    others.into_iter().find_map(|(any, other)| {
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect((other, 9)).ok()?;
        let own = socket.local_addr().ok()?.ip();
        (!own.is_loopback() && !own.is_unspecified()).then_some(own)
    })
}

/// Reads the keys of files.
fn token_keys(paths: &[PathBuf]) -> Result<TokenKeys, Failure> {
    let mut keys = TokenKeys::default();
    for path in paths {
        let named = path.display();
        let text = std::fs::read(path).map_err(|error| {
            let why = file_error(&error);
            Failure::input(format!("{named} cannot be read: {why}"))
        })?;
        keys.add_pem(&text).map_err(|error| {
            Failure::input(format!("--service-account-key-file: {named}: {error}"))
        })?;
    }
    Ok(keys)
}

/// Reads the tokens of a file.
fn tokens(path: &Path) -> Result<StaticTokens, Failure> {
    let hint = "a line is: token,user,uid,\"group1,group2\"";
    let text = std::fs::read_to_string(path).map_err(|error| {
        let why = file_error(&error);
        Failure::input(format!("{} cannot be read: {why}", path.display())).hint(hint)
    })?;
    StaticTokens::from_csv(&text)
        .map_err(|error| Failure::input(format!("{}: {error}", path.display())).hint(hint))
}

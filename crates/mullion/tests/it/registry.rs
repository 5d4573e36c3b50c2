//! Image registries on loopback for tests: Debian's docker-registry where it is installed, and always one of our own, which speaks as much
//! of the distribution API as pushing and pulling manifests needs. Also registries that misbehave.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::cluster::PATIENCE;

/// Who may read a private registry.
pub(crate) const USER: &str = "robot";
pub(crate) const PASSWORD: &str = "secret";
/// `secret`, as htpasswd files keep it.
const PASSWORD_HASH: &str = "$2b$04$nDmKEFuY7OR38EBjbmjbhuPJZIXI1WsTEMw6qaOy8ydxbHpWnu6J2";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const IMAGE: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";

/// A running registry.
pub(crate) struct Registry {
    /// Its host and port.
    pub(crate) host: String,
    private: bool,
    /// Whether new connections are held and never answered.
    asleep: Arc<AtomicBool>,
    _process: Option<(Killed, TempDir)>,
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts every registry at hand: ours, and docker-registry if it is on PATH.
#[allow(
    clippy::print_stderr,
    reason = "whoever runs the tests is told what was left out"
)]
pub(crate) fn at_hand(private: bool) -> Vec<Registry> {
    let mut all = vec![Registry::ours(private)];
    match Registry::debian_s(private) {
        Some(registry) => all.push(registry),
        None => eprintln!(
            "docker-registry is not on PATH, so only the tests' own registry is asked: `apt-get install docker-registry` has it"
        ),
    }
    all
}

impl Registry {
    /// Starts one that can sleep.
    pub(crate) fn ours(private: bool) -> Registry {
        let objects: Objects = Arc::default();
        let asleep = Arc::new(AtomicBool::new(false));
        let (sleeps, held) = (asleep.clone(), Mutex::new(Vec::new()));
        let host = serve(move |stream| {
            if sleeps.load(Ordering::SeqCst) {
                held.lock().expect("no panic").push(stream)
            } else {
                answer(stream, &objects, private)
            }
        });
        Registry {
            host,
            private,
            asleep,
            _process: None,
        }
    }

    fn debian_s(private: bool) -> Option<Registry> {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let host = format!("127.0.0.1:{}", port.expect("a free port").port());
        let root = dir.path().join("images");
        let mut config = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: {host}}}\n",
            root.display()
        );
        if private {
            let users = dir.path().join("users");
            let line = format!("{USER}:{PASSWORD_HASH}\n");
            std::fs::write(&users, line).expect("a file of users");
            config += &format!(
                "auth: {{htpasswd: {{realm: test, path: {}}}}}\n",
                users.display()
            );
        }
        let file = dir.path().join("config.yml");
        std::fs::write(&file, config).expect("a configuration");
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let process = Killed(child);
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(&host).is_err() {
            assert!(Instant::now() < deadline, "docker-registry does not listen");
            thread::yield_now();
        }
        Some(Registry {
            host,
            private,
            asleep: Arc::default(),
            _process: Some((process, dir)),
        })
    }

    /// Lets it take connections without ever answering them, or answer new ones again.
    pub(crate) fn sleep(&self, asleep: bool) {
        self.asleep.store(asleep, Ordering::SeqCst);
    }

    /// Pushes what the tests install: images for one system, for one build, for every build, and an index of several with an attestation.
    pub(crate) fn push_shop(&self) {
        let linux = json!({"os": "linux", "architecture": "amd64"});
        let any = json!({"os": "windows", "architecture": "amd64"});
        let windows = |version: &str| {
            let mut platform = any.clone();
            platform["os.version"] = version.into();
            platform
        };
        let (older, newer) = (windows("10.0.17763.6414"), windows("10.0.20348.2700"));
        let attestation = json!({"os": "unknown", "architecture": "unknown"});
        let all = [linux.clone(), older.clone(), newer.clone(), attestation];
        self.push_index("shop/mixed", "1", &all);
        self.push_index("shop/any", "1", std::slice::from_ref(&any));
        self.push_image("shop/linux", "1", &linux);
        self.push_image("shop/win2019", "1", &older);
        self.push_image("shop/win", "1", &newer);
    }

    /// Pushes an image of one platform and returns the reference of its manifest.
    pub(crate) fn push_image(&self, repository: &str, tag: &str, platform: &Value) -> Value {
        let mut config = platform.clone();
        config["rootfs"] = json!({"type": "layers", "diff_ids": []});
        let config = config.to_string();
        let layer = format!("a layer of {repository}:{tag}");
        let descriptor = |media_type: &str, body: &str| json!({"mediaType": media_type, "digest": digest(body.as_bytes()), "size": body.len()});
        for blob in [&config, &layer] {
            self.push_blob(repository, blob);
        }
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": IMAGE,
            "config": descriptor(CONFIG, &config),
            "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", &layer)],
        });
        let manifest = manifest.to_string();
        self.push_manifest(repository, tag, IMAGE, &manifest);
        let mut entry = descriptor(IMAGE, &manifest);
        entry["platform"] = platform.clone();
        entry
    }

    /// Pushes an index of images of these platforms.
    pub(crate) fn push_index(&self, repository: &str, tag: &str, platforms: &[Value]) {
        let entries = platforms.iter().enumerate().map(|(index, platform)| {
            self.push_image(repository, &format!("{tag}-{index}"), platform)
        });
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries.collect::<Vec<_>>()});
        self.push_manifest(repository, tag, INDEX, &index.to_string());
    }

    fn push_blob(&self, repository: &str, body: &str) {
        let start = self.request("POST", &format!("/v2/{repository}/blobs/uploads/"), "", "");
        let location = start.headers.get("location").expect("a place for a blob");
        let location = match location.split_once("://") {
            Some((_, rest)) => &rest[rest.find('/').expect("a path")..],
            None => location.as_str(),
        };
        let separator = if location.contains('?') { '&' } else { '?' };
        let target = format!("{location}{separator}digest={}", digest(body.as_bytes()));
        let put = self.request("PUT", &target, "application/octet-stream", body);
        assert_eq!(put.status, 201, "{}", put.body);
    }

    fn push_manifest(&self, repository: &str, tag: &str, media_type: &str, body: &str) {
        let target = format!("/v2/{repository}/manifests/{tag}");
        let put = self.request("PUT", &target, media_type, body);
        assert_eq!(put.status, 201, "{}", put.body);
    }

    fn request(&self, method: &str, target: &str, media_type: &str, body: &str) -> Reply {
        let mut stream = TcpStream::connect(&self.host).expect("the registry listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let authorization = if self.private {
            format!("Authorization: Basic {}\r\n", basic())
        } else {
            String::new()
        };
        let head = format!(
            "{method} {target} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: {media_type}\r\nContent-Length: {}\r\n{authorization}\r\n",
            self.host,
            body.len()
        );
        stream
            .write_all((head + body).as_bytes())
            .expect("a request can be sent");
        let (first, headers, body) = message(&mut BufReader::new(stream)).expect("an answer");
        let status = first
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        Reply {
            status: status.expect("a status"),
            headers,
            body: String::from_utf8_lossy(&body).into_owned(),
        }
    }
}

struct Reply {
    status: u16,
    headers: HashMap<String, String>,
    body: String,
}

/// A server that answers nothing or always the same, and counts who comes.
pub(crate) struct Odd {
    pub(crate) host: String,
    calls: Arc<AtomicUsize>,
}

impl Odd {
    /// Takes connections and never answers.
    pub(crate) fn hanging() -> Odd {
        let open = Mutex::new(Vec::new());
        Odd::of(move |stream| open.lock().expect("no panic").push(stream))
    }

    /// Answers 429 and wants to be left alone for an hour.
    pub(crate) fn busy() -> Odd {
        Odd::of(|mut stream| {
            let _ = message(&mut BufReader::new(&mut stream));
            let _ = stream.write_all(
                b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n",
            );
        })
    }

    fn of(work: impl Fn(TcpStream) + Send + Sync + 'static) -> Odd {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let host = serve(move |stream| {
            counted.fetch_add(1, Ordering::SeqCst);
            work(stream);
        });
        Odd { host, calls }
    }

    /// How many connections there have been.
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

/// A host on which nobody listens.
pub(crate) fn down() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").to_string()
}

fn serve(work: impl Fn(TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let host = listener.local_addr().expect("an address").to_string();
    let work = Arc::new(work);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.set_read_timeout(Some(Duration::from_secs(30)));
            let work = work.clone();
            thread::spawn(move || work(stream));
        }
    });
    host
}

/// Media type and body by path.
type Objects = Arc<Mutex<HashMap<String, (String, Vec<u8>)>>>;

/// Answers the requests of one connection as a registry does.
fn answer(stream: TcpStream, objects: &Objects, private: bool) {
    let mut reader = BufReader::new(stream);
    while let Some((first, headers, body)) = message(&mut reader) {
        let mut words = first.split(' ');
        let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let authorized =
            !private || headers.get("authorization") == Some(&format!("Basic {}", basic()));
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut objects = objects.lock().expect("no panic");
        let (status, extra, body) = match method {
            _ if !authorized => (
                "401 Unauthorized",
                "WWW-Authenticate: Basic realm=\"test\"\r\n".to_owned(),
                Vec::new(),
            ),
            "POST" => ("202 Accepted", format!("Location: {path}1\r\n"), Vec::new()),
            "PUT" => {
                let upload = path
                    .split_once("/blobs/uploads/")
                    .map(|(repository, _)| repository);
                let path = match upload {
                    Some(repository) => {
                        format!("{repository}/blobs/{}", query.trim_start_matches("digest="))
                    }
                    None => path.to_owned(),
                };
                let media_type = headers.get("content-type").cloned().unwrap_or_default();
                if let Some((repository, _)) = path.split_once("/manifests/") {
                    let by_digest = format!("{repository}/manifests/{}", digest(&body));
                    objects.insert(by_digest, (media_type.clone(), body.clone()));
                }
                objects.insert(path, (media_type, body));
                ("201 Created", String::new(), Vec::new())
            }
            _ => match objects.get(path) {
                Some((media_type, body)) => (
                    "200 OK",
                    format!("Content-Type: {media_type}\r\n"),
                    body.clone(),
                ),
                None => ("404 Not Found", String::new(), Vec::new()),
            },
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\n{extra}\r\n",
            body.len()
        );
        let stream = reader.get_mut();
        if stream
            .write_all(head.as_bytes())
            .and_then(|()| stream.write_all(&body))
            .is_err()
        {
            return;
        }
    }
}

/// Reads a message of HTTP: its first line, its headers by lower-case name, its body. `None` at the end.
fn message(reader: &mut impl BufRead) -> Option<(String, HashMap<String, String>, Vec<u8>)> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let headers: HashMap<_, _> = lines
        .iter()
        .skip(1)
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers
        .get("content-length")
        .and_then(|length| length.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    Some((lines.first()?.clone(), headers, body))
}

fn basic() -> String {
    STANDARD.encode(format!("{USER}:{PASSWORD}"))
}

fn digest(body: &[u8]) -> String {
    let hex: String = Sha256::digest(body)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("sha256:{hex}")
}

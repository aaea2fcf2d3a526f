//! A file of Docker Compose: services whose containers start servers.

use super::Replicas;
use crate::launch::{self, Begins, Launch};
use crate::shell::quoted;
use crate::variables::{Variables, assigned, take};
use crate::yaml::{self, Entry};
use input::diagnostic::{Code, Finding};

/// A service that starts a server: its name, how many there are, the position of what began it, and the launch.
pub(super) type Service = (String, Replicas, usize, Launch);

/// The keys of a file of Compose; `None` where it is none.
pub(super) fn entries(text: &str) -> Option<Vec<Entry>> {
    let has_services = text.lines().any(|line| line.starts_with("services:"));
    if has_services { yaml::unfolded(text).ok() } else { None }
}

/// Services that start servers, in order. Those of a profile do not start by themselves (docs.docker.com, Compose's `profiles`): they are left out beside
/// others.
pub(super) fn services(entries: &[Entry], begins: &[Begins]) -> Result<Vec<Service>, Finding> {
    let (mut found, mut of_profiles) = (Vec::new(), Vec::new());
    for service in entries.iter().filter(|entry| entry.path.len() == 2 && entry.path[0] == "services") {
        let own: Vec<&Entry> = entries.iter().filter(|entry| entry.path.starts_with(&service.path)).collect();
        let launched = launch::all_of_script(&script(&own), begins)?.into_iter().next();
        if let Some((engine, launch)) = launched {
            let place = |key: &str| own.iter().find(|entry| entry.path.get(2).is_some_and(|own| own == key));
            let at =
                place("command").or_else(|| place("entrypoint")).map_or(service.at.clone(), |entry| entry.at.clone());
            let launch = launch.moved_to(&at);
            let replicas = own.iter().find(|entry| entry.path[2..] == ["deploy", "replicas"]);
            let replicas = Replicas::read(replicas.copied());
            let profiles = place("profiles").filter(|entry| entry.value != "[]");
            let list = if profiles.is_some() { &mut of_profiles } else { &mut found };
            list.push((service.path[1].clone(), replicas, engine, launch));
        }
    }
    let told = of_a_profile(entries, &of_profiles.iter().map(|(name, ..)| name.as_str()).collect::<Vec<_>>());
    if found.is_empty() {
        found = of_profiles;
    }
    if let Some((.., launch)) = found.first_mut() {
        launch.findings.extend(told);
    }
    Ok(found)
}

/// A warning about services that start where their profile is asked for.
fn of_a_profile(entries: &[Entry], names: &[&str]) -> Option<Finding> {
    let way = ["services", names.first()?, "profiles"];
    let key = entries.iter().find(|entry| entry.path == way);
    let what = format!("services of `profiles` start where their profile is asked for: `{}`", names.join("`, `"));
    let help = "beside services without one they are left out; take the key away where they run";
    Some(Finding::warning(Code::NotModelled, key.map(|entry| entry.at.clone()), what).help(help))
}

/// What a service runs, as a command that runs its image: `entrypoint` and `command` are texts or lists.
fn script(own: &[&Entry]) -> String {
    let (mut image, mut entrypoint, mut command) = (String::new(), String::new(), String::new());
    let mut variables = Variables::new();
    for entry in own {
        match entry.path.get(2).map(String::as_str) {
            Some("image") => image.clone_from(&entry.value),
            Some("entrypoint") => entrypoint += &words(entry),
            Some("command") => command += &words(entry),
            Some("environment") => variable(&mut variables, entry),
            _ => {}
        }
    }
    assigned(&variables) + "docker run " + &quoted(&image) + " " + &entrypoint + &command
}

/// Words of a text or of a list, as a shell reads them.
fn words(entry: &Entry) -> String {
    if entry.key() == "-" || entry.value.starts_with('[') {
        return yaml::listed(entry).iter().map(|word| quoted(word) + " ").collect();
    }
    // Lines of a text are parted as words are, also where a mark says that they go on.
    entry.value.replace('\n', " ").replace("\\ ", " ") + " "
}

/// A variable: `NAME: value`, or an item `NAME=value`.
fn variable(variables: &mut Variables, entry: &Entry) {
    let pair = if entry.key() == "-" { entry.value.split_once('=') } else { Some((entry.key(), entry.value.as_str())) };
    if let Some((name, value)) = pair.filter(|(name, _)| *name != "environment") {
        take(variables, "name", name);
        // What Compose itself puts in is known only when it runs.
        take(variables, "value", if value.contains('$') { "" } else { value });
    }
}

//! Output to another process: a mount's server executes a client's command, whose output belongs to
//! the client.
//!
//! The redirection applies to the thread that executes the command. Results go to the client's
//! descriptor. Messages go to a function that sends them to the client, which prints them in its
//! own way. In such a run, progress is not shown.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Receiver of messages. Arguments: a label (`warning`), or none for an unlabelled line, and the
/// text.
pub type Hearer = Rc<dyn Fn(Option<&str>, &str)>;

/// Redirection of a thread's output.
#[derive(Clone)]
pub struct Elsewhere {
    /// Standard output of the client; `None` if it is closed.
    pub output: Option<Rc<OwnedFd>>,
    /// True if the client's standard output is a terminal.
    pub is_terminal: bool,
    /// Receiver of messages.
    pub hearer: Hearer,
}

thread_local! {
    static HERE: RefCell<Option<Elsewhere>> = const { RefCell::new(None) };
}

/// Guard that restores the output, also after a panic.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        HERE.with(|here| here.borrow_mut().take());
    }
}

/// Runs a job with redirected output.
pub fn within<T>(elsewhere: Elsewhere, job: impl FnOnce() -> T) -> T {
    HERE.with(|here| *here.borrow_mut() = Some(elsewhere));
    let _restored = Restored;
    job()
}

fn get<T>(look: impl FnOnce(&Elsewhere) -> T) -> Option<T> {
    HERE.with(|here| here.borrow().as_ref().map(look))
}

/// Returns whether this thread's output is redirected.
pub fn is_set() -> bool {
    get(|_| ()).is_some()
}

/// Returns a new descriptor of the client's standard output, or that it is closed; `None` without a
/// redirection.
pub fn output() -> Option<io::Result<Option<File>>> {
    get(|elsewhere| {
        let output = elsewhere.output.as_ref();
        output
            .map(|output| Ok(File::from(output.try_clone()?)))
            .transpose()
    })
}

/// Returns whether the client's standard output is a terminal; `None` without a redirection.
pub fn is_terminal() -> Option<bool> {
    get(|elsewhere| elsewhere.is_terminal)
}

/// Sends a message to the client; returns `false` without a redirection.
pub fn tell(label: Option<&str>, text: &str) -> bool {
    let hearer = get(|elsewhere| Rc::clone(&elsewhere.hearer));
    hearer.map(|hearer| hearer(label, text)).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::{stdout::Raw, terminal};
    use std::io::{Read as _, Write as _};

    #[test]
    fn output_goes_where_it_is_wanted_and_only_meanwhile() {
        let (mut reader, writer) = io::pipe().unwrap();
        let heard = Rc::new(RefCell::new(Vec::new()));
        let hears = Rc::clone(&heard);
        let elsewhere = Elsewhere {
            output: Some(Rc::new(writer.into())),
            is_terminal: false,
            hearer: Rc::new(move |label, text| {
                let said = format!("{}: {text}", label.unwrap_or("-"));
                hears.borrow_mut().push(said);
            }),
        };
        within(elsewhere, || {
            assert!(is_set());
            assert!(matches!(Raw::stdout(), Raw::Elsewhere(_)));
            terminal::stdout(false).write_all(b"result").unwrap();
            terminal::message("warning", anstyle::AnsiColor::Red, &"text");
            terminal::line(&"help: this");
            terminal::status_line("50 %");
        });
        assert!(!is_set());
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "result");
        assert_eq!(*heard.borrow(), ["warning: text", "-: help: this"]);
    }
}

//! Results and messages that do not belong to this process: a mount's server does what somebody asked it for, and what that prints
//! is his.
//!
//! It holds for the thread that does the work. Results go to a descriptor of his, messages to a function that hands them on, so that
//! his own process prints them, in its own way. Progress is not shown.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Takes messages: a label (`warning`), or none for a line by itself, and the text.
pub type Hearer = Rc<dyn Fn(Option<&str>, &str)>;

/// Where they go.
#[derive(Clone)]
pub struct Elsewhere {
    /// Standard output of who asked; `None` where it is closed.
    pub output: Option<Rc<OwnedFd>>,
    /// Whether that is a terminal.
    pub is_terminal: bool,
    /// Takes messages.
    pub hearer: Hearer,
}

thread_local! {
    static HERE: RefCell<Option<Elsewhere>> = const { RefCell::new(None) };
}

/// Puts things back at the end, also of a panic.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        HERE.with(|here| here.borrow_mut().take());
    }
}

/// Does a job whose output goes elsewhere.
pub fn within<T>(elsewhere: Elsewhere, job: impl FnOnce() -> T) -> T {
    HERE.with(|here| *here.borrow_mut() = Some(elsewhere));
    let _restored = Restored;
    job()
}

fn get<T>(look: impl FnOnce(&Elsewhere) -> T) -> Option<T> {
    HERE.with(|here| here.borrow().as_ref().map(look))
}

/// Whether this thread's output goes elsewhere.
pub fn is_set() -> bool {
    get(|_| ()).is_some()
}

/// The standard output that is elsewhere, if it is: another descriptor of it, or that it is closed.
pub fn output() -> Option<io::Result<Option<File>>> {
    get(|elsewhere| {
        let output = elsewhere.output.as_ref();
        output
            .map(|output| Ok(File::from(output.try_clone()?)))
            .transpose()
    })
}

/// Whether the standard output that is elsewhere is a terminal.
pub fn is_terminal() -> Option<bool> {
    get(|elsewhere| elsewhere.is_terminal)
}

/// Hands a message on; `false` where it belongs to this process.
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

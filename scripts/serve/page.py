"""Uses the chat page of `ane serve` in headless Chromium, as a person would: writes, stops, edits, sets, switches conversations, by mouse
and by keyboard, on a wide and a narrow window, light and dark.

usage: scripts/serve/page.py COMMAND MODEL [--chromium PATH] [--pictures FOLDER]
Needs Playwright for Python (pip install playwright) and Chromium. Prints one line of JSON; the exit code is 1 if something was wrong.
"""
import argparse
import json
import os
import shutil
import sys

from playwright.sync_api import expect, sync_playwright

from running import Server

PATIENCE = 120000  # milliseconds
WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 375, "height": 667}


class Page:
    def __init__(self, browser, server, scheme, size):
        self.context = browser.new_context(viewport=size, color_scheme=scheme)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.server, self.faults, self.outside = server, [], []
        self.page.on("console", lambda m: self.faults.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda e: self.faults.append(str(e)))
        self.page.on("request", lambda r: None if r.url.startswith(server.url) else self.outside.append(r.url))
        self.page.goto(server.url)

    def at(self, selector):
        return self.page.locator(selector)

    def settings(self, **values):
        if not self.at("#settings").is_visible():
            self.at("#menu").click()
        self.at("#settings").click()
        for name, value in values.items():
            self.at("#" + name).fill(str(value))
        self.at("#options button.main").click()

    def wait_until_idle(self):
        expect(self.at("#send")).to_be_visible(timeout=PATIENCE)
        expect(self.at("#stop")).to_be_hidden(timeout=PATIENCE)

    def articles(self):
        return self.at("#talk article")

    def fits(self):
        """Is the page no wider than its window?"""
        return self.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def talk(p):
    """Sends by mouse and by keyboard. Replies stream, and end with their speed."""
    p.settings(temperature=0, most=12)
    p.at("#input").fill("Hello")
    p.at("#send").click()
    p.wait_until_idle()
    assert p.articles().count() == 2
    assert "tokens" in p.articles().nth(1).locator(".foot").inner_text()
    p.at("#input").press_sequentially("Again")
    p.at("#input").press("Enter")
    p.wait_until_idle()
    assert p.articles().count() == 4
    assert p.fits()


def stop(p):
    """A reply is stopped by the button, and one by the Escape key. The server is halted meanwhile, so that no reply ends before."""
    p.settings(temperature=0, most=400)
    for how in ("button", "key"):
        before = p.articles().count()
        p.server.pause(True)
        p.at("#input").fill("A long one")
        p.at("#input").press("Enter")
        expect(p.articles()).to_have_count(before + 2, timeout=PATIENCE)
        if how == "button":
            p.at("#stop").click()
        else:
            p.page.keyboard.press("Escape")
        p.wait_until_idle()
        p.server.pause(False)
        assert "stopped" in p.articles().last.locator(".foot").inner_text()
    p.settings(temperature=0, most=8)


def keep(p):
    """Conversations are kept in the browser, and can be switched, reloaded and deleted."""
    count = p.articles().count()
    p.page.reload()
    expect(p.articles()).to_have_count(count, timeout=PATIENCE)
    if not p.at("#new").is_visible():
        p.at("#menu").click()
    p.at("#new").click()
    expect(p.articles()).to_have_count(0, timeout=PATIENCE)
    p.at("#input").fill("Other <b>talk</b> & more")
    p.at("#input").press("Enter")
    p.wait_until_idle()
    assert "<b>talk</b>" in p.articles().first.inner_text(), "markup must be shown as text"
    if not p.at("#list").is_visible():
        p.at("#menu").click()
    assert p.at("#list li").count() == 2
    p.at("#list li").nth(0).get_by_label("Delete").click()
    expect(p.at("#list li")).to_have_count(1, timeout=PATIENCE)


def edit(p):
    """A message is edited: what followed it is computed anew."""
    p.articles().first.get_by_role("button", name="Edit").click()
    area = p.at("textarea[aria-label='Edit the message']")
    area.fill("Changed")
    area.press("Enter")
    p.wait_until_idle()
    assert "Changed" in p.articles().first.inner_text()
    assert p.articles().count() == 2
    p.articles().first.get_by_role("button", name="Edit").press("Enter")
    area.press("Escape")
    expect(p.articles().first.get_by_role("button", name="Edit")).to_be_focused()


def short(p):
    """A reply of one token has no speed."""
    p.settings(temperature=0, most=1)
    p.at("#input").fill("One token")
    p.at("#input").press("Enter")
    p.wait_until_idle()
    foot = p.articles().last.locator(".foot span").inner_text()
    assert foot.startswith("1 token, first after ") and foot.endswith(" s, cut off"), foot


def tabs(p):
    """A conversation of another tab appears, and neither tab loses one."""
    other = p.context.new_page()
    other.goto(p.server.url)
    if not other.locator("#new").is_visible():
        other.locator("#menu").click()
    other.locator("#new").click()
    other.locator("#input").fill("From the other tab")
    other.locator("#input").press("Enter")
    expect(p.at("#list li")).to_have_count(2, timeout=PATIENCE)
    expect(other.locator("#send")).to_be_visible(timeout=PATIENCE)
    before = p.articles().count()
    p.at("#input").fill("From this tab")
    p.at("#input").press("Enter")
    p.wait_until_idle()
    assert p.articles().count() == before + 2
    other.reload()
    expect(other.locator("#list li")).to_have_count(2, timeout=PATIENCE)
    other.close()


def use(browser, server, scheme, size, pictures):
    p = Page(browser, server, scheme, size)
    for step in (talk, stop, keep, edit, short, tabs):
        step(p)
    assert p.fits(), "wider than the window"
    if pictures:
        p.page.screenshot(path=os.path.join(pictures, "%s-%d.png" % (scheme, size["width"])))
    assert not p.outside, "requests elsewhere: %r" % p.outside
    assert not p.faults, "the console says %r" % p.faults
    p.context.close()


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("command")
    a.add_argument("model")
    a.add_argument("--chromium", default=shutil.which("chromium"))
    a.add_argument("--pictures")
    options = a.parse_args()
    server = Server(options.command, options.model)
    done = []
    try:
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
            for scheme, size in (("light", WIDE), ("dark", WIDE), ("light", NARROW), ("dark", NARROW)):
                use(browser, server, scheme, size, options.pictures)
                done.append("%s %d" % (scheme, size["width"]))
            browser.close()
    finally:
        code = server.stop()
    print(json.dumps({"ok": code == 0, "windows": done}))
    return 0 if code == 0 else 1


if __name__ == "__main__":
    sys.exit(main())

// A page that is opened from a file may not start a worker. Search then runs in a hidden frame that answers the same
// calls, so that it works without a server and without a network.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = "<!doctype html><title>search</title>";
      this.frame.addEventListener("load", () => this.start(url), { once: true });
      document.body.append(this.frame);
    }

    start(url) {
      const inside = this.frame.contentWindow;
      if (!inside) return; // ended before it began
      inside.postMessage = (data) => setTimeout(() => this.onmessage?.({ data: structuredClone(data) }));
      const script = inside.document.createElement("script");
      script.src = url;
      script.addEventListener("load", () => {
        const waiting = this.waiting;
        this.waiting = null;
        waiting.forEach((data) => this.postMessage(data));
      });
      script.addEventListener("error", (event) => this.onerror?.(event));
      inside.document.body.append(script);
    }

    postMessage(data) {
      const inside = this.frame.contentWindow;
      if (this.waiting) this.waiting.push(data);
      else setTimeout(() => inside?.onmessage({ data: inside.structuredClone(data) })); // a copy, and later, as in a worker
    }

    terminate() {
      this.frame.remove();
    }
  };
}
